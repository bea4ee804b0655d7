"""Each of the invariants I8 to I12 reports a history that violates it."""

import pytest

from tests.chaos.facts import Fault
from tests.chaos.final_state import ScheduleRuns
from tests.chaos.history_builder import LEASE_SECONDS, START, HistoryBuilder
from tests.chaos.redelivery_causes import redelivery_causes
from tests.chaos.workload import FIFO

# I8: order


def pass_over_urgent_job(history: HistoryBuilder) -> HistoryBuilder:
    history.enqueue(0, "low", key="k1")
    history.enqueue(0, "urgent", key="k2", priority=5)
    history.complete_job("low", 3)
    history.complete_job("urgent", 4)
    return history


def test_invariant_8_reports_passed_over_urgent_job(history: HistoryBuilder) -> None:
    assert pass_over_urgent_job(history).violations()["I8"] == ["passed over: id-urgent for 2.9 s by id-low in work"]


def test_invariant_8_allows_passing_over_during_a_fault(history: HistoryBuilder) -> None:
    history.faults.append(Fault("postgres_stop", START + 1, START + 2, [0]))
    assert pass_over_urgent_job(history).violations() == {}


def test_invariant_8_reports_passed_over_old_job(history: HistoryBuilder) -> None:
    history.enqueue(0, "old", key="k1")
    history.enqueue(5, "young", key="k2")
    history.complete_job("young", 8)
    history.complete_job("old", 9)
    assert len(history.violations()["I8"]) == 1


def test_invariant_8_allows_no_passing_over_with_a_single_consumer(history: HistoryBuilder) -> None:
    history.enqueue(0, "first", key="k1", queue=FIFO)
    history.enqueue(0.2, "second", key="k2", queue=FIFO)
    history.complete_job("second", 0.4, queue=FIFO)
    history.complete_job("first", 1, queue=FIFO)
    assert history.violations()["I8"] == ["passed over: id-first for 0.3 s by id-second in fifo"]


# I9: all jobs finish


def test_invariant_9_reports_wrong_statistics(one_job: HistoryBuilder) -> None:
    one_job.complete_job("a", 1)
    assert one_job.violations(stats={"completed": 2})["I9"] == ["statistics report 2 completed, the tables have 1"]


def test_invariant_9_reports_unfinished_jobs_after_the_drain(one_job: HistoryBuilder) -> None:
    one_job.store("a", "ready")
    assert one_job.violations(drained=False)["I9"] == ["not finished in time: {'ready': 1}"]


def test_invariant_9_reports_jobs_without_coverage(one_job: HistoryBuilder) -> None:
    one_job.complete_job("a", 1)
    assert one_job.violations(uncovered=2)["I9"] == ["jobs without coverage: 2"]


def test_invariant_9_reports_deadlocks(one_job: HistoryBuilder) -> None:
    one_job.complete_job("a", 1)
    assert one_job.violations(deadlocks=3)["I9"] == ["deadlocks: 3"]


def test_invariant_9_reports_broker_that_does_not_exit(one_job: HistoryBuilder) -> None:
    one_job.complete_job("a", 1)
    assert one_job.violations(hung_brokers=1)["I9"] == ["1 brokers did not exit on SIGTERM"]


@pytest.mark.parametrize("status", [1, -11])
def test_invariant_9_reports_broker_that_exits_by_itself_or_with_an_error(one_job: HistoryBuilder, status: int) -> None:
    one_job.complete_job("a", 1)
    assert one_job.violations(failed_brokers=[status])["I9"] == [
        f"a broker exited by itself or with an error: status {status}"
    ]


# I10: unknown outcomes resolve


def test_invariant_10_reports_repeated_claim_with_other_jobs(history: HistoryBuilder) -> None:
    history.enqueue(0, "a", "b")
    history.claim(1, "a", key="c")
    history.claim(2, "b", key="c")
    history.settle(3, "a")
    history.store("a")
    history.settle(3, "b")
    history.store("b")
    assert history.violations()["I10"] == ["claim c: repeated, but got other jobs: ['id-b']"]


def test_invariant_10_reports_repeated_claim_with_a_missing_job(one_job: HistoryBuilder) -> None:
    one_job.claim(1, "a", key="c")
    one_job.claim_nothing(2, key="c")
    one_job.settle(3, "a")
    one_job.store("a")
    assert one_job.violations()["I10"] == ["claim c: repeated, but id-a is missing"]


def test_invariant_10_reports_not_done_settlement_that_was_done(one_job: HistoryBuilder) -> None:
    one_job.claim(1, "a")
    one_job.settle(2, "a", kind="fail", code="database_unavailable")
    one_job.settle(3, "a", status="already_settled")
    one_job.store("a")
    assert one_job.violations()["I10"] == ["reported as not done, but it was done: complete of id-a delivery 1"]


def test_invariant_10_reports_settled_then_lost(one_job: HistoryBuilder) -> None:
    one_job.complete_job("a", 1)
    one_job.settle(3, "a", kind="fail", code="lease_lost")
    assert one_job.violations()["I10"] == ["settled, then lost: complete of id-a delivery 1"]


def test_invariant_10_reports_lost_then_settled(one_job: HistoryBuilder) -> None:
    one_job.claim(1, "a")
    one_job.settle(2, "a", kind="fail", code="lease_lost")
    one_job.settle(3, "a")
    one_job.store("a")
    assert one_job.violations()["I10"] == ["lost, then settled: complete of id-a delivery 1"]


def test_invariant_10_reports_call_that_never_succeeds(history: HistoryBuilder) -> None:
    history.enqueue(0, "a", kind="info")
    assert history.violations()["I10"] == ["never resolved: k"]


def test_invariant_10_reports_job_created_before_a_not_done_response(history: HistoryBuilder) -> None:
    milliseconds = int((START + 0.02) * 1000)
    stamp = f"{milliseconds:012x}"
    id = f"{stamp[:8]}-{stamp[8:]}-7000-8000-000000000000"
    history.enqueue(0, "a", kind="fail")
    history.enqueue(1, "a", ids={"a": id})
    history.claim(2, "a", id=id)
    history.store("a", "dead", id=id)
    assert history.violations()["I10"] == ["reported as not done, but it was done: k, 0.080 s before"]


# I11: no early runs


def test_invariant_11_reports_early_delivery_of_a_delayed_job(history: HistoryBuilder) -> None:
    history.enqueue(0, "a", run_at=START + 5)
    history.complete_job("a", 1)
    assert history.violations()["I11"] == ["early by 3.900 s: id-a delivery 1"]


def test_invariant_11_reports_early_retry(one_job: HistoryBuilder) -> None:
    one_job.claim(1, "a")
    one_job.settle(2, "a", "fail", run_at=START + 9)
    one_job.claim(3, "a", delivery=2)
    one_job.settle(4, "a", delivery=2)
    one_job.store("a")
    assert one_job.violations()["I11"] == ["early by 5.900 s: id-a delivery 2"]


@pytest.mark.parametrize("jobs", [9, 11])
def test_invariant_11_reports_missed_or_duplicate_schedule_run(history: HistoryBuilder, jobs: int) -> None:
    history.schedule_runs.append(ScheduleRuns("every-second", runs=10, jobs=jobs))
    assert history.violations()["I11"] == [f"{jobs} jobs of 10 runs: every-second"]


# I12: counts


def test_invariant_12_reports_completed_job_without_completion(one_job: HistoryBuilder) -> None:
    one_job.claim(1, "a")
    one_job.settle(2, "a", "fail", kind="info")
    one_job.store("a")
    assert one_job.violations()["I12"] == ["completed without a completion: id-a"]


def test_invariant_12_reports_different_states_in_api_and_database(one_job: HistoryBuilder) -> None:
    one_job.complete_job("a", 1)
    assert one_job.violations(api_states={"id-a": "ready"})["I12"] == [
        "the API reports ready for id-a, the database completed"
    ]


def test_invariant_12_reports_stored_job_without_acknowledgement(history: HistoryBuilder) -> None:
    history.enqueue(0, "a", kind="info")
    history.complete_job("a", 1)
    assert history.violations()["I12"] == ["stored, but never reported: id-a"]


# Causes of redeliveries (not an invariant)


def test_every_redelivery_is_counted_under_its_cause(history: HistoryBuilder) -> None:
    history.enqueue(0, "a")
    history.claim(1, "a", delivery=2)
    history.settle(2, "a", "release", delivery=2)
    history.claim(3, "a", delivery=3)
    history.claim(4 + LEASE_SECONDS, "a", delivery=4)
    history.settle(15, "a", delivery=4, kind="info")
    history.faults.append(Fault("db_cut", START + 15, START + 16, [0]))
    history.claim(30, "a", delivery=5)
    history.settle(31, "a", delivery=5)
    history.store("a", deliveries=5)
    assert redelivery_causes(history.facts()) == {"response lost": 1, "requeued": 1, "worker silent": 1, "fault": 1}
