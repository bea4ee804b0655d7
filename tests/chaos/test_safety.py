"""A checker that cannot fail proves nothing: each of I1 to I7 is shown a history that breaks it, and a sound one that it lets pass."""

import pytest

from tests.chaos.story import LEASE, Story
from tests.chaos.workload import GROUPED, LIMITED, MAX_RUNNING


def test_a_sound_history_passes(story: Story) -> None:
    story.enqueue(0, "a", "b", kind="info")
    story.enqueue(0.5, "a", "b")
    story.claim(1, "a", key="c")
    story.claim(1.5, "a", key="c")
    story.beat(2, "a")
    story.settle(3, "a", "release", attempt=0)
    story.claim(4, "a", delivery=2, attempt=1)
    story.claim(4 + LEASE + 1, "a", delivery=3, attempt=2)
    story.settle(16, "a", delivery=3, kind="info")
    story.settle(17, "a", delivery=3, status="already_settled")
    story.settle(18, "a", delivery=2, kind="fail", code="lease_lost")
    story.keep("a")
    story.done("b", 1)
    assert story.verdict(stats={"completed": 2}, told={"id-a": "completed", "id-b": "completed"}) == {}


# I1: nothing that was acknowledged is lost


def test_i1_an_acknowledged_job_that_is_not_there(enqueued: Story) -> None:
    assert enqueued.verdict()["I1"] == ["lost: a was acknowledged as id-a, and there is no such job"]


def test_i1_an_acknowledged_job_that_never_ends(enqueued: Story) -> None:
    enqueued.keep("a", "running")
    assert enqueued.verdict()["I1"] == ["unfinished: a (id-a) is running "]


def test_i1_a_job_that_nobody_cancelled(enqueued: Story) -> None:
    enqueued.keep("a", "cancelled")
    assert enqueued.verdict()["I1"] == ["cancelled without a request: a (id-a)"]


# I2: nothing comes from nowhere


def test_i2_a_job_that_nobody_sent(enqueued: Story) -> None:
    enqueued.done("a", 1)
    enqueued.done("b", 1)
    assert len(enqueued.verdict()["I2"]) == 2


def test_i2_another_payload(enqueued: Story) -> None:
    enqueued.done("a", 1, payload="other")
    assert enqueued.verdict()["I2"] == ["another payload than was sent: id-a key a"]


# I3: one job per key


def test_i3_two_answers_to_one_key(enqueued: Story) -> None:
    enqueued.enqueue(1, "a", ids={"a": "id-other"})
    enqueued.done("a", 2)
    assert "one key, several answers: k [('id-a',), ('id-other',)]" in enqueued.verdict()["I3"]


def test_i3_a_job_that_is_stored_twice(enqueued: Story) -> None:
    enqueued.done("a", 1)
    enqueued.keep("a", id="id-twin")
    assert enqueued.verdict()["I3"] == ["stored 2 times: a"]


def test_i3_one_id_in_two_tables(enqueued: Story) -> None:
    enqueued.done("a", 1)
    enqueued.keep("a", "dead")
    assert "2 rows with id id-a" in enqueued.verdict()["I3"]


def test_i3_half_a_batch(story: Story) -> None:
    story.enqueue(0, "a", "b", kind="info")
    story.done("a", 1)
    assert story.verdict()["I3"] == ["half a batch: 1 of 2 jobs of k"]


def test_i3_a_unique_key_taken_twice(story: Story) -> None:
    story.enqueue(0, "a-0", unique="u", key="a")
    story.enqueue(1, "b-0", unique="u", key="b")
    story.done("a-0", 2)
    story.done("b-0", 2)
    assert story.verdict()["I3"] == ["unique key u twice: id-a-0 and id-b-0"]


def test_i3_a_unique_key_is_free_when_its_job_may_have_ended(story: Story) -> None:
    story.enqueue(0, "a-0", unique="u", key="a")
    story.done("a-0", 1)
    story.enqueue(1.25, "b-0", unique="u", key="b")
    story.done("b-0", 2)
    assert story.verdict() == {}


# I4: one completion


def test_i4_two_holders_complete(enqueued: Story) -> None:
    enqueued.claim(1, "a")
    enqueued.claim(2 + LEASE, "a", delivery=2)
    enqueued.settle(13, "a", delivery=2)
    enqueued.settle(14, "a", delivery=1)
    enqueued.keep("a")
    found = enqueued.verdict()
    assert "completed by two holders: id-a, deliveries [1, 2]" in found["I4"]
    assert "stale complete accepted: id-a delivery 1 after 2" in found["I6"]


def test_i4_a_completion_that_does_not_stand(enqueued: Story) -> None:
    enqueued.claim(1, "a")
    enqueued.settle(2, "a")
    enqueued.keep("a", "dead")
    assert enqueued.verdict()["I4"] == ["completion accepted, but id-a is dead"]


def test_i4_a_repeated_completion_that_counts_again(enqueued: Story) -> None:
    enqueued.done("a", 1)
    enqueued.settle(3, "a")
    assert enqueued.verdict()["I4"] == ["accepted as new more than once: id-a"]


def test_i4_a_hand_out_after_completion(enqueued: Story) -> None:
    enqueued.done("a", 1)
    enqueued.claim(LEASE + 5, "a", delivery=2)
    assert enqueued.verdict()["I4"] == ["handed out after completion: id-a, delivery 2"]


def test_i4_a_lease_that_ends_in_two_ways(enqueued: Story) -> None:
    enqueued.claim(1, "a")
    enqueued.settle(2, "a")
    enqueued.settle(2, "a", "fail")
    enqueued.keep("a")
    assert enqueued.verdict()["I4"] == ["settled in two ways: id-a, ['complete', 'fail']"]


def test_i4_of_two_rivals_one_may_lose(enqueued: Story) -> None:
    enqueued.claim(1, "a")
    enqueued.settle(2, "a", "fail", kind="fail", code="lease_lost")
    enqueued.settle(2.05, "a")
    enqueued.keep("a")
    assert enqueued.verdict() == {}


# I5: one holder


def test_i5_leases_that_overlap(enqueued: Story) -> None:
    enqueued.claim(1, "a")
    enqueued.claim(5, "a", delivery=2)
    enqueued.settle(6, "a", delivery=2)
    enqueued.keep("a")
    assert enqueued.verdict()["I5"] == ["overlap by 5.900 s: id-a, deliveries 1 and 2 (w, w)"]


def test_i5_an_extended_lease_that_is_not_respected(enqueued: Story) -> None:
    enqueued.claim(1, "a")
    enqueued.beat(9, "a")
    enqueued.claim(2 + LEASE, "a", delivery=2)
    enqueued.settle(13, "a", delivery=2)
    enqueued.keep("a")
    assert enqueued.verdict()["I5"] == ["overlap by 6.900 s: id-a, deliveries 1 and 2 (w, w)"]


def test_i5_one_lease_in_two_hands(enqueued: Story) -> None:
    enqueued.claim(1, "a", key="c", by="w1")
    enqueued.claim(2, "a", key="d", by="w2")
    enqueued.settle(3, "a")
    enqueued.keep("a")
    assert enqueued.verdict()["I5"] == ["one lease, two claims: id-a delivery 1 ['c', 'd']"]


def test_i5_one_delivery_with_two_tokens(enqueued: Story) -> None:
    enqueued.claim(1, "a", token="t1")
    enqueued.claim(2, "a", token="other")
    enqueued.settle(3, "a")
    enqueued.keep("a")
    assert enqueued.verdict()["I5"] == ["one delivery, two tokens: id-a delivery 1"]


def test_i5_more_leases_than_may_run(story: Story) -> None:
    jobs = [f"j{number}" for number in range(MAX_RUNNING + 1)]
    story.enqueue(0, *jobs, queue=LIMITED)
    for job in jobs:
        story.claim(1, job, queue=LIMITED)
        story.settle(5, job)
        story.keep(job)
    assert len(story.verdict()["I5 limits"]) == 1


def test_i5_two_of_a_group_at_once(story: Story) -> None:
    story.enqueue(0, "a", "b", queue=GROUPED, group="g")
    for job in ("a", "b"):
        story.claim(1, job, queue=GROUPED, group="g")
        story.settle(5, job)
        story.keep(job)
    assert len(story.verdict()["I5 limits"]) == 1


# I6: the fence


def test_i6_a_stale_heartbeat(enqueued: Story) -> None:
    enqueued.claim(1, "a")
    enqueued.claim(LEASE + 2, "a", delivery=2)
    enqueued.beat(LEASE + 3, "a")
    enqueued.settle(LEASE + 4, "a", delivery=2)
    enqueued.keep("a")
    assert enqueued.verdict()["I6"] == ["stale heartbeat accepted: id-a delivery 1 after 2"]


# I7: attempts


@pytest.mark.parametrize(("outcome", "attempt"), [("release", 2), ("snooze", 2), ("fail", 1), ("fail", 3)])
def test_i7_a_wrong_count(enqueued: Story, outcome: str, attempt: int) -> None:
    enqueued.claim(1, "a")
    enqueued.settle(2, "a", outcome)
    enqueued.claim(5, "a", delivery=2, attempt=attempt)
    enqueued.settle(6, "a", delivery=2)
    enqueued.keep("a")
    assert enqueued.verdict()["I7"] == [f"attempt 1 -> {attempt} over deliveries 1 -> 2: id-a"]


def test_i7_an_execution_too_many(enqueued: Story) -> None:
    enqueued.done("a", 1, attempt=6)
    assert enqueued.verdict()["I7"] == ["attempt 6 of 5: id-a"]
