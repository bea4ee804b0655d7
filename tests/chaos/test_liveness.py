"""Each of I8 to I12 is shown a history that breaks it."""

import pytest

from tests.chaos.causes import causes
from tests.chaos.facts import Fault
from tests.chaos.final import Ticks
from tests.chaos.story import BEGIN, LEASE, Story
from tests.chaos.workload import LINE

# I8: order


def urgent_passed_over(story: Story) -> Story:
    story.enqueue(0, "low", key="k1")
    story.enqueue(0, "urgent", key="k2", priority=5)
    story.done("low", 3)
    story.done("urgent", 4)
    return story


def test_i8_an_urgent_job_is_passed_over(story: Story) -> None:
    assert urgent_passed_over(story).verdict()["I8"] == ["passed over: id-urgent for 2.9 s by id-low in work"]


def test_i8_while_something_is_wrong_it_may_be(story: Story) -> None:
    story.faults.append(Fault("postgres_stop", BEGIN + 1, BEGIN + 2, [0]))
    assert urgent_passed_over(story).verdict() == {}


def test_i8_an_old_job_is_passed_over(story: Story) -> None:
    story.enqueue(0, "old", key="k1")
    story.enqueue(5, "young", key="k2")
    story.done("young", 8)
    story.done("old", 9)
    assert len(story.verdict()["I8"]) == 1


def test_i8_where_one_consumer_is_alone_nothing_is_passed_over_at_all(story: Story) -> None:
    story.enqueue(0, "first", key="k1", queue=LINE)
    story.enqueue(0.2, "second", key="k2", queue=LINE)
    story.done("second", 0.4, queue=LINE)
    story.done("first", 1, queue=LINE)
    assert story.verdict()["I8"] == ["passed over: id-first for 0.3 s by id-second in line"]


# I9: an end


def test_i9_statistics_that_are_off(enqueued: Story) -> None:
    enqueued.done("a", 1)
    assert enqueued.verdict(stats={"completed": 2})["I9"] == ["stats say 2 completed, the tables 1"]


def test_i9_a_run_that_does_not_come_to_an_end(enqueued: Story) -> None:
    enqueued.keep("a", "ready")
    assert enqueued.verdict(drained=False)["I9"] == ["not over in time: {'ready': 1}"]


def test_i9_brokers_that_lock_in_different_orders(enqueued: Story) -> None:
    enqueued.done("a", 1)
    assert enqueued.verdict(deadlocks=3)["I9"] == ["deadlocks: 3"]


def test_i9_a_broker_that_does_not_end(enqueued: Story) -> None:
    enqueued.done("a", 1)
    assert enqueued.verdict(stubborn=1)["I9"] == ["1 brokers did not end on SIGTERM"]


# I10: unknown outcomes resolve


def test_i10_a_repeated_claim_that_gets_others(story: Story) -> None:
    story.enqueue(0, "a", "b")
    story.claim(1, "a", key="c")
    story.claim(2, "b", key="c")
    story.settle(3, "a")
    story.keep("a")
    story.settle(3, "b")
    story.keep("b")
    assert story.verdict()["I10"] == ["claim c: repeated, and got others: ['id-b']"]


def test_i10_a_repeated_claim_that_forgets(enqueued: Story) -> None:
    enqueued.claim(1, "a", key="c")
    enqueued.claim_nothing(2, key="c")
    enqueued.settle(3, "a")
    enqueued.keep("a")
    assert enqueued.verdict()["I10"] == ["claim c: repeated, and id-a is missing"]


def test_i10_not_done_that_was_done(enqueued: Story) -> None:
    enqueued.claim(1, "a")
    enqueued.settle(2, "a", kind="fail", code="database_unavailable")
    enqueued.settle(3, "a", status="already_settled")
    enqueued.keep("a")
    assert enqueued.verdict()["I10"] == ["reported as not done, but it was done: complete of id-a delivery 1"]


def test_i10_an_answer_that_changes_its_mind(enqueued: Story) -> None:
    enqueued.done("a", 1)
    enqueued.settle(3, "a", kind="fail", code="lease_lost")
    assert enqueued.verdict()["I10"] == ["settled, then lost: complete of id-a delivery 1"]


def test_i10_lost_and_then_accepted(enqueued: Story) -> None:
    enqueued.claim(1, "a")
    enqueued.settle(2, "a", kind="fail", code="lease_lost")
    enqueued.settle(3, "a")
    enqueued.keep("a")
    assert enqueued.verdict()["I10"] == ["lost, then settled: complete of id-a delivery 1"]


def test_i10_a_call_that_is_never_resolved(story: Story) -> None:
    story.enqueue(0, "a", kind="info")
    assert story.verdict()["I10"] == ["never resolved: k"]


def test_i10_a_job_older_than_the_word_that_there_was_none(story: Story) -> None:
    milliseconds = int((BEGIN + 0.02) * 1000)
    made = f"{milliseconds:012x}"
    id = f"{made[:8]}-{made[8:]}-7000-8000-000000000000"
    story.enqueue(0, "a", kind="fail")
    story.enqueue(1, "a", ids={"a": id})
    story.claim(2, "a", id=id)
    story.keep("a", "dead", id=id)
    assert story.verdict()["I10"] == ["reported as not done, but it was done: k, 0.080 s before"]


# I11: nothing early


def test_i11_a_delayed_job_that_runs_early(story: Story) -> None:
    story.enqueue(0, "a", run_at=BEGIN + 5)
    story.done("a", 1)
    assert story.verdict()["I11"] == ["early by 3.900 s: id-a delivery 1"]


def test_i11_a_retry_that_runs_early(enqueued: Story) -> None:
    enqueued.claim(1, "a")
    enqueued.settle(2, "a", "fail", run_at=BEGIN + 9)
    enqueued.claim(3, "a", delivery=2)
    enqueued.settle(4, "a", delivery=2)
    enqueued.keep("a")
    assert enqueued.verdict()["I11"] == ["early by 5.900 s: id-a delivery 2"]


@pytest.mark.parametrize("jobs", [9, 11])
def test_i11_a_run_missed_or_fired_twice(story: Story, jobs: int) -> None:
    story.ticks.append(Ticks("every-second", runs=10, jobs=jobs))
    assert story.verdict()["I11"] == [f"{jobs} jobs of 10 runs: every-second"]


# I12: counts


def test_i12_a_job_that_nobody_completed(enqueued: Story) -> None:
    enqueued.claim(1, "a")
    enqueued.settle(2, "a", "fail", kind="info")
    enqueued.keep("a")
    assert enqueued.verdict()["I12"] == ["completed without a completion: id-a"]


def test_i12_the_api_and_the_database_disagree(enqueued: Story) -> None:
    enqueued.done("a", 1)
    assert enqueued.verdict(told={"id-a": "ready"})["I12"] == ["the API says ready of id-a, the database completed"]


def test_i12_a_job_that_nobody_was_told_of(story: Story) -> None:
    story.enqueue(0, "a", kind="info")
    story.done("a", 1)
    assert story.verdict()["I12"] == ["stored, but never reported: id-a"]


# Not an invariant: why jobs were handed out again


def test_every_redelivery_has_its_cause(story: Story) -> None:
    story.enqueue(0, "a")
    story.claim(1, "a", delivery=2)
    story.settle(2, "a", "release", delivery=2)
    story.claim(3, "a", delivery=3)
    story.claim(4 + LEASE, "a", delivery=4)
    story.settle(15, "a", delivery=4, kind="info")
    story.faults.append(Fault("db_cut", BEGIN + 15, BEGIN + 16, [0]))
    story.claim(30, "a", delivery=5)
    story.settle(31, "a", delivery=5)
    story.keep("a", deliveries=5)
    assert causes(story.facts()) == {"answer lost": 1, "given back": 1, "holder silent": 1, "fault": 1}
