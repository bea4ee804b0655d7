"""Histories with calls without an Idempotency-Key, replays, purges, dependencies and pauses:
violations are reported, valid histories pass."""

from tests.chaos.history import Item
from tests.chaos.history_builder import LEASE_SECONDS, START, HistoryBuilder
from tests.chaos.workload import MOVED, PAUSED, PURGED


def test_unknown_call_without_key_may_have_stored_all_jobs_or_none(history: HistoryBuilder) -> None:
    history.enqueue(0, "a", "b", key="", kind="info")
    history.enqueue(0, "c", "d", key="", kind="info")
    history.complete_job("a", 1)
    history.complete_job("b", 1)
    assert history.violations() == {}


def test_partial_batch_without_key_is_reported(history: HistoryBuilder) -> None:
    history.enqueue(0, "a", "b", key="", kind="info")
    history.complete_job("a", 1)
    assert history.violations()["I3"] == ["partial batch: 1 of 2 jobs of a call without a key: a"]


def test_purged_dead_letters_do_not_make_a_batch_partial(history: HistoryBuilder) -> None:
    history.enqueue(0, "a", "b", kind="info")
    history.enqueue(1, "a", "b")
    history.complete_job("a", 2)
    assert history.violations()["I3"] == ["partial batch: 1 of 2 jobs of k"]
    history.act(3, "purge", Item(id="id-b", key="b"))
    assert "I3" not in history.violations()


def test_stored_job_of_a_not_done_call_without_key_is_reported(history: HistoryBuilder) -> None:
    history.enqueue(0, "a", key="", kind="fail")
    history.complete_job("a", 1)
    assert history.violations()["I10"] == ["reported as not done, but it was done: a"]


def test_not_done_call_without_key_may_be_retried(history: HistoryBuilder) -> None:
    history.enqueue(0, "a", key="", kind="fail")
    history.enqueue(1, "a", key="")
    history.complete_job("a", 2)
    assert history.violations() == {}


def test_dead_letter_replayed_into_another_queue_is_not_lost(one_job: HistoryBuilder) -> None:
    one_job.claim(1, "a")
    one_job.settle(2, "a", "fail", retryable=False)
    one_job.act(3, "replay", Item(id="id-a"), result=(Item(id="id-new", replayed_from="id-a"),), queue=MOVED)
    one_job.claim(4, "a", id="id-new", queue=MOVED, token="other")
    assert one_job.violations()["I1"] == ["lost: a was acknowledged as id-a, but does not exist"]
    one_job.store("a", "dead", id="id-new", replayed_from="id-a")
    assert one_job.violations().keys().isdisjoint({"I1", "I2", "I3", "I12"})


def test_replayed_job_starts_with_attempt_one(one_job: HistoryBuilder) -> None:
    one_job.claim(1, "a", attempt=3)
    one_job.settle(2, "a", "fail", retryable=False)
    one_job.claim(4, "a", delivery=2, attempt=1)
    one_job.settle(5, "a", delivery=2)
    one_job.store("a")
    assert one_job.violations()["I7"] == ["attempt 3 -> 1 over deliveries 1 -> 2: id-a"]
    one_job.act(3, "replay", Item(id="id-a"))
    assert "I7" not in one_job.violations()


def test_purged_jobs_are_not_lost(history: HistoryBuilder) -> None:
    history.enqueue(0, "a", "b", queue=PURGED)
    history.enqueue(0, "c", key="other")
    assert len(history.violations()["I1"]) == 3
    history.act(1, "purge", queue=PURGED)
    history.act(1, "purge", Item(key="c", id="id-c"))
    assert "I1" not in history.violations()


def test_purged_dead_letter_is_not_lost_for_a_producer_that_got_it_as_a_duplicate(history: HistoryBuilder) -> None:
    history.enqueue(0, "a", unique="u")
    history.enqueue(1, "b", key="other", unique="u", status="duplicate", ids={"b": "id-a"})
    assert len(history.violations()["I1"]) == 2
    history.act(2, "purge", Item(key="a", id="id-a"))
    assert "I1" not in history.violations()


def test_job_may_be_cancelled_because_of_a_failed_parent(history: HistoryBuilder) -> None:
    history.enqueue(0, "parent")
    history.enqueue(1, "child", key="other", depends_on=["parent"])
    history.store("child", "cancelled", reason="dependency_failed")
    history.complete_job("parent", 2)
    assert history.violations()["I1"] == ["cancelled without a request: child (id-child)"]
    history.stored[-1].state = "dead"
    assert "I1" not in history.violations()


def test_expired_lease_of_a_paused_queue_that_is_not_ended_is_reported(one_job: HistoryBuilder) -> None:
    one_job.claim(1, "a", queue=PAUSED)
    one_job.settle(LEASE_SECONDS + 5, "a")
    one_job.store("a")
    held = Item(id="id-a", queue=PAUSED, deliveries=1, lease_until=START + 1 + LEASE_SECONDS)
    one_job.act(LEASE_SECONDS + 2, "leases", result=(held,))
    assert one_job.violations() == {}
    one_job.act(LEASE_SECONDS + 5, "leases", result=(held,))
    assert one_job.violations()["I9"] == ["lease expired 4.0 s ago and was not ended: id-a delivery 1 in paused"]
