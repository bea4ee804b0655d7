"""Histories with calls without an Idempotency-Key, replays, purges, dependencies and pauses: valid ones pass, invalid ones are found."""

from tests.chaos.history import Item
from tests.chaos.history_builder import START, LEASE_SECONDS, HistoryBuilder
from tests.chaos.workload import MOVED, PAUSED, PURGED


def test_an_unknown_call_without_a_key_may_have_stored_all_or_nothing(history: HistoryBuilder) -> None:
    history.enqueue(0, "a", "b", key="", kind="info")
    history.enqueue(0, "c", "d", key="", kind="info")
    history.complete_job("a", 1)
    history.complete_job("b", 1)
    assert history.violations() == {}


def test_half_a_batch_without_a_key(history: HistoryBuilder) -> None:
    history.enqueue(0, "a", "b", key="", kind="info")
    history.complete_job("a", 1)
    assert history.violations()["I3"] == ["partial batch: 1 of 2 jobs of a call without a key: a"]


def test_purged_dead_letters_do_not_make_half_a_batch(history: HistoryBuilder) -> None:
    history.enqueue(0, "a", "b", kind="info")
    history.enqueue(1, "a", "b")
    history.complete_job("a", 2)
    assert history.violations()["I3"] == ["partial batch: 1 of 2 jobs of k"]
    history.act(3, "purge", Item(id="id-b", key="b"))
    assert "I3" not in history.violations()


def test_a_call_without_a_key_that_was_refused_and_stored(history: HistoryBuilder) -> None:
    history.enqueue(0, "a", key="", kind="fail")
    history.complete_job("a", 1)
    assert history.violations()["I10"] == ["reported as not done, but it was done: a"]


def test_a_refused_call_without_a_key_that_was_sent_again(history: HistoryBuilder) -> None:
    history.enqueue(0, "a", key="", kind="fail")
    history.enqueue(1, "a", key="")
    history.complete_job("a", 2)
    assert history.violations() == {}


def test_a_dead_letter_moved_to_another_queue(enqueued: HistoryBuilder) -> None:
    enqueued.claim(1, "a")
    enqueued.settle(2, "a", "fail", retryable=False)
    enqueued.act(3, "replay", Item(id="id-a"), result=(Item(id="id-new", replayed_from="id-a"),), queue=MOVED)
    enqueued.claim(4, "a", id="id-new", queue=MOVED, token="other")
    assert enqueued.violations()["I1"] == ["lost: a was acknowledged as id-a, but does not exist"]
    enqueued.store("a", "dead", id="id-new", replayed_from="id-a")
    assert enqueued.violations().keys().isdisjoint({"I1", "I2", "I3", "I12"})


def test_a_replayed_job_has_its_attempts_again(enqueued: HistoryBuilder) -> None:
    enqueued.claim(1, "a", attempt=3)
    enqueued.settle(2, "a", "fail", retryable=False)
    enqueued.claim(4, "a", delivery=2, attempt=1)
    enqueued.settle(5, "a", delivery=2)
    enqueued.store("a")
    assert enqueued.violations()["I7"] == ["attempt 3 -> 1 over deliveries 1 -> 2: id-a"]
    enqueued.act(3, "replay", Item(id="id-a"))
    assert "I7" not in enqueued.violations()


def test_purged_jobs_are_not_lost(history: HistoryBuilder) -> None:
    history.enqueue(0, "a", "b", queue=PURGED)
    history.enqueue(0, "c", key="other")
    assert len(history.violations()["I1"]) == 3
    history.act(1, "purge", queue=PURGED)
    history.act(1, "purge", Item(key="c", id="id-c"))
    assert "I1" not in history.violations()


def test_a_job_is_cancelled_with_its_parent(history: HistoryBuilder) -> None:
    history.enqueue(0, "parent")
    history.enqueue(1, "child", key="other", depends_on=["parent"])
    history.store("child", "cancelled", reason="dependency_failed")
    history.complete_job("parent", 2)
    assert history.violations()["I1"] == ["cancelled without a request: child (id-child)"]
    history.stored[-1].state = "dead"
    assert "I1" not in history.violations()


def test_a_lease_of_a_paused_queue_that_ran_out_is_taken_back(enqueued: HistoryBuilder) -> None:
    enqueued.claim(1, "a", queue=PAUSED)
    enqueued.settle(LEASE_SECONDS + 5, "a")
    enqueued.store("a")
    held = Item(id="id-a", queue=PAUSED, deliveries=1, lease_until=START + 1 + LEASE_SECONDS)
    enqueued.act(LEASE_SECONDS + 2, "leases", result=(held,))
    assert enqueued.violations() == {}
    enqueued.act(LEASE_SECONDS + 5, "leases", result=(held,))
    assert enqueued.violations()["I9"] == ["lease expired 4.0 s ago and was not ended: id-a delivery 1 in paused"]
