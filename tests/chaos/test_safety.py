"""A checker that cannot fail proves nothing: each of I1 to I7 is shown a history that breaks it, and a sound one that it lets pass."""

import pytest

from tests.chaos.history_builder import LEASE_SECONDS, HistoryBuilder
from tests.chaos.workload import GROUPED, LIMITED, MAX_RUNNING


def test_a_sound_history_passes(history: HistoryBuilder) -> None:
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


# I1: nothing that was acknowledged is lost


def test_i1_an_acknowledged_job_that_is_not_there(enqueued: HistoryBuilder) -> None:
    assert enqueued.violations()["I1"] == ["lost: a was acknowledged as id-a, but does not exist"]


def test_i1_an_acknowledged_job_that_never_ends(enqueued: HistoryBuilder) -> None:
    enqueued.store("a", "running")
    assert enqueued.violations()["I1"] == ["unfinished: a (id-a) is running "]


def test_i1_a_job_that_nobody_cancelled(enqueued: HistoryBuilder) -> None:
    enqueued.store("a", "cancelled")
    assert enqueued.violations()["I1"] == ["cancelled without a request: a (id-a)"]


# I2: nothing comes from nowhere


def test_i2_a_job_that_nobody_sent(enqueued: HistoryBuilder) -> None:
    enqueued.complete_job("a", 1)
    enqueued.complete_job("b", 1)
    assert len(enqueued.violations()["I2"]) == 2


def test_i2_another_payload(enqueued: HistoryBuilder) -> None:
    enqueued.complete_job("a", 1, payload="other")
    assert enqueued.violations()["I2"] == ["payload differs from the request: id-a key a"]


# I3: one job per key


def test_i3_two_answers_to_one_key(enqueued: HistoryBuilder) -> None:
    enqueued.enqueue(1, "a", ids={"a": "id-other"})
    enqueued.complete_job("a", 2)
    assert "one key, several responses: k [('id-a',), ('id-other',)]" in enqueued.violations()["I3"]


def test_i3_a_job_that_is_stored_twice(enqueued: HistoryBuilder) -> None:
    enqueued.complete_job("a", 1)
    enqueued.store("a", id="id-twin")
    assert enqueued.violations()["I3"] == ["stored 2 times: a"]


def test_i3_one_id_in_two_tables(enqueued: HistoryBuilder) -> None:
    enqueued.complete_job("a", 1)
    enqueued.store("a", "dead")
    assert "2 rows with id id-a" in enqueued.violations()["I3"]


def test_i3_half_a_batch(history: HistoryBuilder) -> None:
    history.enqueue(0, "a", "b", kind="info")
    history.complete_job("a", 1)
    assert history.violations()["I3"] == ["partial batch: 1 of 2 jobs of k"]


def test_i3_a_unique_key_taken_twice(history: HistoryBuilder) -> None:
    history.enqueue(0, "a-0", unique="u", key="a")
    history.enqueue(1, "b-0", unique="u", key="b")
    history.complete_job("a-0", 2)
    history.complete_job("b-0", 2)
    assert history.violations()["I3"] == ["unique key u twice: id-a-0 and id-b-0"]


def test_i3_a_unique_key_is_free_when_its_job_may_have_ended(history: HistoryBuilder) -> None:
    history.enqueue(0, "a-0", unique="u", key="a")
    history.complete_job("a-0", 1)
    history.enqueue(1.25, "b-0", unique="u", key="b")
    history.complete_job("b-0", 2)
    assert history.violations() == {}


# I4: one completion


def test_i4_two_holders_complete(enqueued: HistoryBuilder) -> None:
    enqueued.claim(1, "a")
    enqueued.claim(2 + LEASE_SECONDS, "a", delivery=2)
    enqueued.settle(13, "a", delivery=2)
    enqueued.settle(14, "a", delivery=1)
    enqueued.store("a")
    found = enqueued.violations()
    assert "completed by two holders: id-a, deliveries [1, 2]" in found["I4"]
    assert "stale complete accepted: id-a delivery 1 after 2" in found["I6"]


def test_i4_a_completion_that_does_not_stand(enqueued: HistoryBuilder) -> None:
    enqueued.claim(1, "a")
    enqueued.settle(2, "a")
    enqueued.store("a", "dead")
    assert enqueued.violations()["I4"] == ["completion accepted, but id-a is dead"]


def test_i4_a_repeated_completion_that_counts_again(enqueued: HistoryBuilder) -> None:
    enqueued.complete_job("a", 1)
    enqueued.settle(3, "a")
    assert enqueued.violations()["I4"] == ["accepted as new more than once: id-a"]


def test_i4_a_hand_out_after_completion(enqueued: HistoryBuilder) -> None:
    enqueued.complete_job("a", 1)
    enqueued.claim(LEASE_SECONDS + 5, "a", delivery=2)
    assert enqueued.violations()["I4"] == ["delivered after completion: id-a, delivery 2"]


def test_i4_a_lease_that_ends_in_two_ways(enqueued: HistoryBuilder) -> None:
    enqueued.claim(1, "a")
    enqueued.settle(2, "a")
    enqueued.settle(2, "a", "fail")
    enqueued.store("a")
    assert enqueued.violations()["I4"] == ["settled in two ways: id-a, ['complete', 'fail']"]


def test_i4_of_two_rivals_one_may_lose(enqueued: HistoryBuilder) -> None:
    enqueued.claim(1, "a")
    enqueued.settle(2, "a", "fail", kind="fail", code="lease_lost")
    enqueued.settle(2.05, "a")
    enqueued.store("a")
    assert enqueued.violations() == {}


# I5: one holder


def test_i5_leases_that_overlap(enqueued: HistoryBuilder) -> None:
    enqueued.claim(1, "a")
    enqueued.claim(5, "a", delivery=2)
    enqueued.settle(6, "a", delivery=2)
    enqueued.store("a")
    assert enqueued.violations()["I5"] == ["overlap by 5.900 s: id-a, deliveries 1 and 2 (w, w)"]


def test_i5_an_extended_lease_that_is_not_respected(enqueued: HistoryBuilder) -> None:
    enqueued.claim(1, "a")
    enqueued.heartbeat(9, "a")
    enqueued.claim(2 + LEASE_SECONDS, "a", delivery=2)
    enqueued.settle(13, "a", delivery=2)
    enqueued.store("a")
    assert enqueued.violations()["I5"] == ["overlap by 6.900 s: id-a, deliveries 1 and 2 (w, w)"]


def test_i5_one_lease_in_two_hands(enqueued: HistoryBuilder) -> None:
    enqueued.claim(1, "a", key="c", proc="w1")
    enqueued.claim(2, "a", key="d", proc="w2")
    enqueued.settle(3, "a")
    enqueued.store("a")
    assert enqueued.violations()["I5"] == ["one lease, two claims: id-a delivery 1 ['c', 'd']"]


def test_i5_one_delivery_with_two_tokens(enqueued: HistoryBuilder) -> None:
    enqueued.claim(1, "a", token="t1")
    enqueued.claim(2, "a", token="other")
    enqueued.settle(3, "a")
    enqueued.store("a")
    assert enqueued.violations()["I5"] == ["one delivery, two tokens: id-a delivery 1"]


def test_i5_more_leases_than_may_run(history: HistoryBuilder) -> None:
    jobs = [f"j{number}" for number in range(MAX_RUNNING + 1)]
    history.enqueue(0, *jobs, queue=LIMITED)
    for job in jobs:
        history.claim(1, job, queue=LIMITED)
        history.settle(5, job)
        history.store(job)
    assert len(history.violations()["I5 limits"]) == 1


def test_i5_two_of_a_group_at_once(history: HistoryBuilder) -> None:
    history.enqueue(0, "a", "b", queue=GROUPED, group="g")
    for job in ("a", "b"):
        history.claim(1, job, queue=GROUPED, group="g")
        history.settle(5, job)
        history.store(job)
    assert len(history.violations()["I5 limits"]) == 1


# I6: the fence


def test_i6_a_stale_heartbeat(enqueued: HistoryBuilder) -> None:
    enqueued.claim(1, "a")
    enqueued.claim(LEASE_SECONDS + 2, "a", delivery=2)
    enqueued.heartbeat(LEASE_SECONDS + 3, "a")
    enqueued.settle(LEASE_SECONDS + 4, "a", delivery=2)
    enqueued.store("a")
    assert enqueued.violations()["I6"] == ["stale heartbeat accepted: id-a delivery 1 after 2"]


# I7: attempts


@pytest.mark.parametrize(("outcome", "attempt"), [("release", 2), ("snooze", 2), ("fail", 1), ("fail", 3)])
def test_i7_a_wrong_count(enqueued: HistoryBuilder, outcome: str, attempt: int) -> None:
    enqueued.claim(1, "a")
    enqueued.settle(2, "a", outcome)
    enqueued.claim(5, "a", delivery=2, attempt=attempt)
    enqueued.settle(6, "a", delivery=2)
    enqueued.store("a")
    assert enqueued.violations()["I7"] == [f"attempt 1 -> {attempt} over deliveries 1 -> 2: id-a"]


def test_i7_an_execution_too_many(enqueued: HistoryBuilder) -> None:
    enqueued.complete_job("a", 1, attempt=6)
    assert enqueued.violations()["I7"] == ["attempt 6 of 5: id-a"]
