"""Each of the invariants I1 to I7 reports a history that violates it, and accepts a valid one.

A checker that cannot fail proves nothing."""

import pytest

from tests.chaos.history_builder import LEASE_SECONDS, HistoryBuilder
from tests.chaos.workload import GROUPED, LIMITED, MAX_RUNNING


def test_valid_history_has_no_violations(history: HistoryBuilder) -> None:
    history.enqueue(0, "a", "b", kind="info")
    history.enqueue(0.5, "a", "b")
    history.claim(1, "a", key="c")
    history.claim(1.5, "a", key="c")
    history.heartbeat(2, "a")
    history.settle(3, "a", "release", attempt=0)
    history.claim(4, "a", delivery=2, attempt=1)
    history.claim(4 + LEASE_SECONDS + 1, "a", delivery=3, attempt=2)
    history.settle(16, "a", delivery=3, kind="info")
    history.settle(17, "a", delivery=3, status="already_settled")
    history.settle(18, "a", delivery=2, kind="fail", code="lease_lost")
    history.store("a")
    history.complete_job("b", 1)
    assert history.violations(stats={"completed": 2}, api_states={"id-a": "completed", "id-b": "completed"}) == {}


# I1: no acknowledged job is lost


def test_invariant_1_reports_missing_acknowledged_job(one_job: HistoryBuilder) -> None:
    assert one_job.violations()["I1"] == ["lost: a was acknowledged as id-a, but does not exist"]


def test_invariant_1_reports_unfinished_acknowledged_job(one_job: HistoryBuilder) -> None:
    one_job.store("a", "running")
    assert one_job.violations()["I1"] == ["unfinished: a (id-a) is running "]


def test_invariant_1_reports_job_cancelled_without_request(one_job: HistoryBuilder) -> None:
    one_job.store("a", "cancelled")
    assert one_job.violations()["I1"] == ["cancelled without a request: a (id-a)"]


# I2: every job was enqueued


def test_invariant_2_reports_job_that_was_never_enqueued(one_job: HistoryBuilder) -> None:
    one_job.complete_job("a", 1)
    one_job.complete_job("b", 1)
    assert len(one_job.violations()["I2"]) == 2


def test_invariant_2_reports_changed_payload(one_job: HistoryBuilder) -> None:
    one_job.complete_job("a", 1, payload="other")
    assert one_job.violations()["I2"] == ["payload differs from the request: id-a key a"]


# I3: one job per key


def test_invariant_3_reports_two_responses_to_one_key(one_job: HistoryBuilder) -> None:
    one_job.enqueue(1, "a", ids={"a": "id-other"})
    one_job.complete_job("a", 2)
    assert "one key, several responses: k [('id-a',), ('id-other',)]" in one_job.violations()["I3"]


def test_invariant_3_reports_job_stored_twice(one_job: HistoryBuilder) -> None:
    one_job.complete_job("a", 1)
    one_job.store("a", id="id-twin")
    assert one_job.violations()["I3"] == ["stored 2 times: a"]


def test_invariant_3_reports_one_id_in_two_tables(one_job: HistoryBuilder) -> None:
    one_job.complete_job("a", 1)
    one_job.store("a", "dead")
    assert "2 rows with id id-a" in one_job.violations()["I3"]


def test_invariant_3_reports_partial_batch(history: HistoryBuilder) -> None:
    history.enqueue(0, "a", "b", kind="info")
    history.complete_job("a", 1)
    assert history.violations()["I3"] == ["partial batch: 1 of 2 jobs of k"]


def test_invariant_3_reports_unique_key_of_two_unfinished_jobs(history: HistoryBuilder) -> None:
    history.enqueue(0, "a-0", unique="u", key="a")
    history.enqueue(1, "b-0", unique="u", key="b")
    history.complete_job("a-0", 2)
    history.complete_job("b-0", 2)
    assert history.violations()["I3"] == ["unique key u twice: id-a-0 and id-b-0"]


def test_invariant_3_allows_unique_key_again_when_its_job_may_have_finished(history: HistoryBuilder) -> None:
    history.enqueue(0, "a-0", unique="u", key="a")
    history.complete_job("a-0", 1)
    history.enqueue(1.25, "b-0", unique="u", key="b")
    history.complete_job("b-0", 2)
    assert history.violations() == {}


# I4: one completion


def test_invariant_4_reports_completions_of_two_leases(one_job: HistoryBuilder) -> None:
    one_job.claim(1, "a")
    one_job.claim(2 + LEASE_SECONDS, "a", delivery=2)
    one_job.settle(13, "a", delivery=2)
    one_job.settle(14, "a", delivery=1)
    one_job.store("a")
    found = one_job.violations()
    assert "completed by two holders: id-a, deliveries [1, 2]" in found["I4"]
    assert "stale complete accepted: id-a delivery 1 after 2" in found["I6"]


def test_invariant_4_reports_accepted_completion_of_a_dead_letter(one_job: HistoryBuilder) -> None:
    one_job.claim(1, "a")
    one_job.settle(2, "a")
    one_job.store("a", "dead")
    assert one_job.violations()["I4"] == ["completion accepted, but id-a is dead"]


def test_invariant_4_reports_repeated_completion_accepted_as_new(one_job: HistoryBuilder) -> None:
    one_job.complete_job("a", 1)
    one_job.settle(3, "a")
    assert one_job.violations()["I4"] == ["accepted as new more than once: id-a"]


def test_invariant_4_reports_delivery_after_completion(one_job: HistoryBuilder) -> None:
    one_job.complete_job("a", 1)
    one_job.claim(LEASE_SECONDS + 5, "a", delivery=2)
    assert one_job.violations()["I4"] == ["delivered after completion: id-a, delivery 2"]


def test_invariant_4_reports_lease_settled_in_two_ways(one_job: HistoryBuilder) -> None:
    one_job.claim(1, "a")
    one_job.settle(2, "a")
    one_job.settle(2, "a", "fail")
    one_job.store("a")
    assert one_job.violations()["I4"] == ["settled in two ways: id-a, ['complete', 'fail']"]


def test_invariant_4_allows_one_of_two_conflicting_settlements_to_lose(one_job: HistoryBuilder) -> None:
    one_job.claim(1, "a")
    one_job.settle(2, "a", "fail", kind="fail", code="lease_lost")
    one_job.settle(2.05, "a")
    one_job.store("a")
    assert one_job.violations() == {}


# I5: one lease at a time


def test_invariant_5_reports_overlapping_leases(one_job: HistoryBuilder) -> None:
    one_job.claim(1, "a")
    one_job.claim(5, "a", delivery=2)
    one_job.settle(6, "a", delivery=2)
    one_job.store("a")
    assert one_job.violations()["I5"] == ["overlap by 5.900 s: id-a, deliveries 1 and 2 (w, w)"]


def test_invariant_5_reports_delivery_during_an_extended_lease(one_job: HistoryBuilder) -> None:
    one_job.claim(1, "a")
    one_job.heartbeat(9, "a")
    one_job.claim(2 + LEASE_SECONDS, "a", delivery=2)
    one_job.settle(13, "a", delivery=2)
    one_job.store("a")
    assert one_job.violations()["I5"] == ["overlap by 6.900 s: id-a, deliveries 1 and 2 (w, w)"]


def test_invariant_5_reports_one_lease_returned_to_two_claims(one_job: HistoryBuilder) -> None:
    one_job.claim(1, "a", key="c", proc="w1")
    one_job.claim(2, "a", key="d", proc="w2")
    one_job.settle(3, "a")
    one_job.store("a")
    assert one_job.violations()["I5"] == ["one lease, two claims: id-a delivery 1 ['c', 'd']"]


def test_invariant_5_reports_one_delivery_with_two_tokens(one_job: HistoryBuilder) -> None:
    one_job.claim(1, "a", token="t1")
    one_job.claim(2, "a", token="other")
    one_job.settle(3, "a")
    one_job.store("a")
    assert one_job.violations()["I5"] == ["one delivery, two tokens: id-a delivery 1"]


def test_invariant_5_reports_more_leases_than_max_running(history: HistoryBuilder) -> None:
    jobs = [f"j{number}" for number in range(MAX_RUNNING + 1)]
    history.enqueue(0, *jobs, queue=LIMITED)
    for job in jobs:
        history.claim(1, job, queue=LIMITED)
        history.settle(5, job)
        history.store(job)
    assert len(history.violations()["I5 limits"]) == 1


def test_invariant_5_reports_two_leases_of_a_group_at_once(history: HistoryBuilder) -> None:
    history.enqueue(0, "a", "b", queue=GROUPED, group="g")
    for job in ("a", "b"):
        history.claim(1, job, queue=GROUPED, group="g")
        history.settle(5, job)
        history.store(job)
    assert len(history.violations()["I5 limits"]) == 1


# I6: stale tokens


def test_invariant_6_reports_accepted_stale_heartbeat(one_job: HistoryBuilder) -> None:
    one_job.claim(1, "a")
    one_job.claim(LEASE_SECONDS + 2, "a", delivery=2)
    one_job.heartbeat(LEASE_SECONDS + 3, "a")
    one_job.settle(LEASE_SECONDS + 4, "a", delivery=2)
    one_job.store("a")
    assert one_job.violations()["I6"] == ["stale heartbeat accepted: id-a delivery 1 after 2"]


# I7: attempts


@pytest.mark.parametrize(("outcome", "attempt"), [("release", 2), ("snooze", 2), ("fail", 1), ("fail", 3)])
def test_invariant_7_reports_wrong_attempt_number(one_job: HistoryBuilder, outcome: str, attempt: int) -> None:
    one_job.claim(1, "a")
    one_job.settle(2, "a", outcome)
    one_job.claim(5, "a", delivery=2, attempt=attempt)
    one_job.settle(6, "a", delivery=2)
    one_job.store("a")
    assert one_job.violations()["I7"] == [f"attempt 1 -> {attempt} over deliveries 1 -> 2: id-a"]


def test_invariant_7_reports_attempt_above_max_attempts(one_job: HistoryBuilder) -> None:
    one_job.complete_job("a", 1, attempt=6)
    assert one_job.violations()["I7"] == ["attempt 6 of 5: id-a"]
