"""Histories with calls without an Idempotency-Key, replays, purges, dependencies and pauses: valid ones pass, invalid ones are found."""

from tests.chaos.history import Item
from tests.chaos.story import BEGIN, LEASE, Story
from tests.chaos.workload import MOVED, PAUSED, PURGED


def test_an_unknown_call_without_a_key_may_have_stored_all_or_nothing(story: Story) -> None:
    story.enqueue(0, "a", "b", key="", kind="info")
    story.enqueue(0, "c", "d", key="", kind="info")
    story.done("a", 1)
    story.done("b", 1)
    assert story.verdict() == {}


def test_half_a_batch_without_a_key(story: Story) -> None:
    story.enqueue(0, "a", "b", key="", kind="info")
    story.done("a", 1)
    assert story.verdict()["I3"] == ["half a batch: 1 of 2 jobs of a call without a key: a"]


def test_purged_dead_letters_do_not_make_half_a_batch(story: Story) -> None:
    story.enqueue(0, "a", "b", kind="info")
    story.enqueue(1, "a", "b")
    story.done("a", 2)
    assert story.verdict()["I3"] == ["half a batch: 1 of 2 jobs of k"]
    story.act(3, "purge", Item(id="id-b", key="b"))
    assert "I3" not in story.verdict()


def test_a_call_without_a_key_that_was_refused_and_stored(story: Story) -> None:
    story.enqueue(0, "a", key="", kind="fail")
    story.done("a", 1)
    assert story.verdict()["I10"] == ["reported as not done, but it was done: a"]


def test_a_refused_call_without_a_key_that_was_sent_again(story: Story) -> None:
    story.enqueue(0, "a", key="", kind="fail")
    story.enqueue(1, "a", key="")
    story.done("a", 2)
    assert story.verdict() == {}


def test_a_dead_letter_moved_to_another_queue(enqueued: Story) -> None:
    enqueued.claim(1, "a")
    enqueued.settle(2, "a", "fail", retryable=False)
    enqueued.act(3, "replay", Item(id="id-a"), told=(Item(id="id-new", replayed_from="id-a"),), queue=MOVED)
    enqueued.claim(4, "a", id="id-new", queue=MOVED, token="other")
    assert enqueued.verdict()["I1"] == ["lost: a was acknowledged as id-a, and there is no such job"]
    enqueued.keep("a", "dead", id="id-new", replayed_from="id-a")
    assert enqueued.verdict().keys().isdisjoint({"I1", "I2", "I3", "I12"})


def test_a_replayed_job_has_its_attempts_again(enqueued: Story) -> None:
    enqueued.claim(1, "a", attempt=3)
    enqueued.settle(2, "a", "fail", retryable=False)
    enqueued.claim(4, "a", delivery=2, attempt=1)
    enqueued.settle(5, "a", delivery=2)
    enqueued.keep("a")
    assert enqueued.verdict()["I7"] == ["attempt 3 -> 1 over deliveries 1 -> 2: id-a"]
    enqueued.act(3, "replay", Item(id="id-a"))
    assert "I7" not in enqueued.verdict()


def test_purged_jobs_are_not_lost(story: Story) -> None:
    story.enqueue(0, "a", "b", queue=PURGED)
    story.enqueue(0, "c", key="other")
    assert len(story.verdict()["I1"]) == 3
    story.act(1, "purge", queue=PURGED)
    story.act(1, "purge", Item(key="c", id="id-c"))
    assert "I1" not in story.verdict()


def test_purged_dead_letter_is_not_lost_for_a_producer_that_got_it_as_a_duplicate(story: Story) -> None:
    story.enqueue(0, "a", unique="u")
    story.enqueue(1, "b", key="other", unique="u", told="duplicate", ids={"b": "id-a"})
    assert len(story.verdict()["I1"]) == 2
    story.act(2, "purge", Item(key="a", id="id-a"))
    assert "I1" not in story.verdict()


def test_a_job_is_cancelled_with_its_parent(story: Story) -> None:
    story.enqueue(0, "parent")
    story.enqueue(1, "child", key="other", depends_on=["parent"])
    story.keep("child", "cancelled", reason="dependency_failed")
    story.done("parent", 2)
    assert story.verdict()["I1"] == ["cancelled without a request: child (id-child)"]
    story.kept[-1].state = "dead"
    assert "I1" not in story.verdict()


def test_a_lease_of_a_paused_queue_that_ran_out_is_taken_back(enqueued: Story) -> None:
    enqueued.claim(1, "a", queue=PAUSED)
    enqueued.settle(LEASE + 5, "a")
    enqueued.keep("a")
    held = Item(id="id-a", queue=PAUSED, deliveries=1, lease_until=BEGIN + 1 + LEASE)
    enqueued.act(LEASE + 2, "leases", told=(held,))
    assert enqueued.verdict() == {}
    enqueued.act(LEASE + 5, "leases", told=(held,))
    assert enqueued.verdict()["I9"] == ["ran out 4.0 s ago and was not taken back: id-a delivery 1 in paused"]
