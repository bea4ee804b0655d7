"""Each of I8 to I12 is shown a history that breaks it."""

import pytest

from tests.chaos.redelivery_causes import redelivery_causes
from tests.chaos.facts import Fault
from tests.chaos.final_state import ScheduleRuns
from tests.chaos.history_builder import START, LEASE_SECONDS, HistoryBuilder
from tests.chaos.workload import FIFO

# I8: order


def urgent_passed_over(history: HistoryBuilder) -> HistoryBuilder:
    history.enqueue(0, "low", key="k1")
    history.enqueue(0, "urgent", key="k2", priority=5)
    history.complete_job("low", 3)
    history.complete_job("urgent", 4)
    return history


def test_i8_an_urgent_job_is_passed_over(history: HistoryBuilder) -> None:
    assert urgent_passed_over(history).violations()["I8"] == ["passed over: id-urgent for 2.9 s by id-low in work"]


def test_i8_while_something_is_wrong_it_may_be(history: HistoryBuilder) -> None:
    history.faults.append(Fault("postgres_stop", START + 1, START + 2, [0]))
    assert urgent_passed_over(history).violations() == {}


def test_i8_an_old_job_is_passed_over(history: HistoryBuilder) -> None:
    history.enqueue(0, "old", key="k1")
    history.enqueue(5, "young", key="k2")
    history.complete_job("young", 8)
    history.complete_job("old", 9)
    assert len(history.violations()["I8"]) == 1


def test_i8_where_one_consumer_is_alone_nothing_is_passed_over_at_all(history: HistoryBuilder) -> None:
    history.enqueue(0, "first", key="k1", queue=FIFO)
    history.enqueue(0.2, "second", key="k2", queue=FIFO)
    history.complete_job("second", 0.4, queue=FIFO)
    history.complete_job("first", 1, queue=FIFO)
    assert history.violations()["I8"] == ["passed over: id-first for 0.3 s by id-second in fifo"]


# I9: an end


def test_i9_statistics_that_are_off(enqueued: HistoryBuilder) -> None:
    enqueued.complete_job("a", 1)
    assert enqueued.violations(stats={"completed": 2})["I9"] == ["statistics report 2 completed, the tables have 1"]


def test_i9_a_run_that_does_not_come_to_an_end(enqueued: HistoryBuilder) -> None:
    enqueued.store("a", "ready")
    assert enqueued.violations(drained=False)["I9"] == ["not finished in time: {'ready': 1}"]


def test_i9_brokers_that_lock_in_different_orders(enqueued: HistoryBuilder) -> None:
    enqueued.complete_job("a", 1)
    assert enqueued.violations(deadlocks=3)["I9"] == ["deadlocks: 3"]


def test_i9_a_broker_that_does_not_end(enqueued: HistoryBuilder) -> None:
    enqueued.complete_job("a", 1)
    assert enqueued.violations(hung_brokers=1)["I9"] == ["1 brokers did not exit on SIGTERM"]


# I10: unknown outcomes resolve


def test_i10_a_repeated_claim_that_gets_others(history: HistoryBuilder) -> None:
    history.enqueue(0, "a", "b")
    history.claim(1, "a", key="c")
    history.claim(2, "b", key="c")
    history.settle(3, "a")
    history.store("a")
    history.settle(3, "b")
    history.store("b")
    assert history.violations()["I10"] == ["claim c: repeated, but got other jobs: ['id-b']"]


def test_i10_a_repeated_claim_that_forgets(enqueued: HistoryBuilder) -> None:
    enqueued.claim(1, "a", key="c")
    enqueued.claim_nothing(2, key="c")
    enqueued.settle(3, "a")
    enqueued.store("a")
    assert enqueued.violations()["I10"] == ["claim c: repeated, but id-a is missing"]


def test_i10_not_done_that_was_done(enqueued: HistoryBuilder) -> None:
    enqueued.claim(1, "a")
    enqueued.settle(2, "a", kind="fail", code="database_unavailable")
    enqueued.settle(3, "a", status="already_settled")
    enqueued.store("a")
    assert enqueued.violations()["I10"] == ["reported as not done, but it was done: complete of id-a delivery 1"]


def test_i10_an_answer_that_changes_its_mind(enqueued: HistoryBuilder) -> None:
    enqueued.complete_job("a", 1)
    enqueued.settle(3, "a", kind="fail", code="lease_lost")
    assert enqueued.violations()["I10"] == ["settled, then lost: complete of id-a delivery 1"]


def test_i10_lost_and_then_accepted(enqueued: HistoryBuilder) -> None:
    enqueued.claim(1, "a")
    enqueued.settle(2, "a", kind="fail", code="lease_lost")
    enqueued.settle(3, "a")
    enqueued.store("a")
    assert enqueued.violations()["I10"] == ["lost, then settled: complete of id-a delivery 1"]


def test_i10_a_call_that_is_never_resolved(history: HistoryBuilder) -> None:
    history.enqueue(0, "a", kind="info")
    assert history.violations()["I10"] == ["never resolved: k"]


def test_i10_a_job_older_than_the_word_that_there_was_none(history: HistoryBuilder) -> None:
    milliseconds = int((START + 0.02) * 1000)
    stamp = f"{milliseconds:012x}"
    id = f"{stamp[:8]}-{stamp[8:]}-7000-8000-000000000000"
    history.enqueue(0, "a", kind="fail")
    history.enqueue(1, "a", ids={"a": id})
    history.claim(2, "a", id=id)
    history.store("a", "dead", id=id)
    assert history.violations()["I10"] == ["reported as not done, but it was done: k, 0.080 s before"]


# I11: nothing early


def test_i11_a_delayed_job_that_runs_early(history: HistoryBuilder) -> None:
    history.enqueue(0, "a", run_at=START + 5)
    history.complete_job("a", 1)
    assert history.violations()["I11"] == ["early by 3.900 s: id-a delivery 1"]


def test_i11_a_retry_that_runs_early(enqueued: HistoryBuilder) -> None:
    enqueued.claim(1, "a")
    enqueued.settle(2, "a", "fail", run_at=START + 9)
    enqueued.claim(3, "a", delivery=2)
    enqueued.settle(4, "a", delivery=2)
    enqueued.store("a")
    assert enqueued.violations()["I11"] == ["early by 5.900 s: id-a delivery 2"]


@pytest.mark.parametrize("jobs", [9, 11])
def test_i11_a_run_missed_or_fired_twice(history: HistoryBuilder, jobs: int) -> None:
    history.schedule_runs.append(ScheduleRuns("every-second", runs=10, jobs=jobs))
    assert history.violations()["I11"] == [f"{jobs} jobs of 10 runs: every-second"]


# I12: counts


def test_i12_a_job_that_nobody_completed(enqueued: HistoryBuilder) -> None:
    enqueued.claim(1, "a")
    enqueued.settle(2, "a", "fail", kind="info")
    enqueued.store("a")
    assert enqueued.violations()["I12"] == ["completed without a completion: id-a"]


def test_i12_the_api_and_the_database_disagree(enqueued: HistoryBuilder) -> None:
    enqueued.complete_job("a", 1)
    assert enqueued.violations(api_states={"id-a": "ready"})["I12"] == [
        "the API reports ready for id-a, the database completed"
    ]


def test_i12_a_job_that_nobody_was_told_of(history: HistoryBuilder) -> None:
    history.enqueue(0, "a", kind="info")
    history.complete_job("a", 1)
    assert history.violations()["I12"] == ["stored, but never reported: id-a"]


# Not an invariant: why jobs were handed out again


def test_every_redelivery_has_its_cause(history: HistoryBuilder) -> None:
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
