"""Handwritten histories about how jobs end: the checker reports each invalid one, and accepts a similar valid one.

Times are seconds from the beginning; a lease lasts ten.
"""

import pytest

from tests.chaos.story import BEGIN, LEASE, Story
from tests.chaos.transition_rules import MAX_CRASHES, MAX_DELIVERIES

# Dead letters


def failures(story: Story, count: int, *, retryable: bool = True) -> None:
    story.enqueue(0, "a")
    for delivery in range(1, count + 1):
        story.claim(2 * delivery, "a", delivery=delivery, max_attempts=3)
        story.settle(2 * delivery + 1, "a", "fail", delivery=delivery, retryable=retryable)


def dead(story: Story, reason: str, **fields: float) -> None:
    counts = {"deliveries": 0, "attempt": 0, "max_attempts": 3, "ended": BEGIN + 100}
    story.keep("a", "dead", **{"reason": reason, **counts, **fields})


def silent(story: Story, count: int) -> float:
    """Leases without a further call of their worker. Returns when the last expires."""
    story.enqueue(0, "a")
    for delivery in range(1, count + 1):
        story.claim((LEASE + 1) * delivery, "a", delivery=delivery)
    return (LEASE + 1) * (count + 1)


@pytest.mark.parametrize(
    ("failed", "attempt", "found"),
    [
        (1, 1, "1 of 3 attempts were spent"),
        (1, 3, "1 of 3 attempts were spent"),
        (2, 2, "2 of 3 attempts were spent"),
        (3, 3, ""),
    ],
)
def test_attempts_exhausted_needs_as_many_failures(story: Story, failed: int, attempt: int, found: str) -> None:
    failures(story, failed)
    dead(story, "attempts_exhausted", deliveries=failed, attempt=attempt)
    assert story.verdict().get("I13", []) == ([f"dead as attempts_exhausted, but {found}: id-a"] if found else [])


def test_released_deliveries_exhaust_no_attempts(story: Story) -> None:
    story.enqueue(0, "a")
    for delivery in (1, 2, 3):
        story.claim(2 * delivery, "a", delivery=delivery, attempt=1, max_attempts=3)
        story.settle(2 * delivery + 1, "a", "release", delivery=delivery)
    dead(story, "attempts_exhausted", deliveries=3, attempt=3)
    assert story.verdict()["I13"] == ["dead as attempts_exhausted, but 0 of 3 attempts were spent: id-a"]


def test_deliveries_whose_answer_was_lost_may_have_spent_attempts(story: Story) -> None:
    failures(story, 1)
    dead(story, "attempts_exhausted", deliveries=3, attempt=3)
    assert story.verdict() == {}


@pytest.mark.parametrize(("retryable", "breaches"), [(True, 1), (False, 0)])
def test_not_retryable_needs_a_failure_with_retryable_false(story: Story, *, retryable: bool, breaches: int) -> None:
    failures(story, 1, retryable=retryable)
    dead(story, "not_retryable", deliveries=1, attempt=1)
    assert len(story.verdict().get("I13", [])) == breaches


def test_refused_failure_kills_no_job(story: Story) -> None:
    story.enqueue(0, "a")
    story.claim(1, "a")
    story.settle(2, "a", "fail", retryable=False, kind="fail", code="lease_lost")
    dead(story, "not_retryable", deliveries=1, attempt=1)
    assert story.verdict()["I13"] == ["dead as not_retryable, but its worker has not said so: id-a"]


@pytest.mark.parametrize(("crashes", "breaches"), [(MAX_CRASHES - 1, 1), (MAX_CRASHES, 0)])
def test_poison_needs_leases_that_ran_out(story: Story, crashes: int, breaches: int) -> None:
    silent(story, crashes)
    dead(story, "poison", deliveries=crashes, attempt=crashes, crashes=MAX_CRASHES)
    assert len(story.verdict().get("I13", [])) == breaches


def test_poison_before_the_last_lease_has_run_out(story: Story) -> None:
    over = silent(story, MAX_CRASHES)
    dead(story, "poison", deliveries=MAX_CRASHES, attempt=MAX_CRASHES, crashes=MAX_CRASHES, ended=BEGIN + over - 5)
    assert story.verdict()["I13"] == [f"dead as poison, but {MAX_CRASHES - 1} leases ran out: id-a"]


@pytest.mark.parametrize(
    ("expires_at", "ended", "found"),
    [(0, 5, "it has no expires_at"), (8, 5, "3.000 s before expires_at"), (4, 5, "")],
)
def test_expired_needs_a_start_deadline_that_has_passed(
    story: Story, expires_at: float, ended: float, found: str
) -> None:
    story.enqueue(0, "a", expires_at=BEGIN + expires_at if expires_at else 0)
    dead(story, "expired", ended=BEGIN + ended)
    assert story.verdict().get("I13", []) == ([f"dead as expired, but {found}: id-a"] if found else [])


def test_expired_although_it_had_begun(story: Story) -> None:
    story.enqueue(0, "a", expires_at=BEGIN + 4)
    story.claim(1, "a")
    dead(story, "expired", deliveries=1, attempt=1, ended=BEGIN + 12)
    assert story.verdict()["I13"] == ["dead as expired, but delivery 1 had begun it: id-a"]


@pytest.mark.parametrize(("deliveries", "breaches"), [(MAX_DELIVERIES - 1, 1), (MAX_DELIVERIES, 0)])
def test_undeliverable_needs_many_deliveries(story: Story, deliveries: int, breaches: int) -> None:
    story.enqueue(0, "a")
    dead(story, "undeliverable", deliveries=deliveries)
    assert len(story.verdict().get("I13", [])) == breaches


def test_death_without_a_known_reason(story: Story) -> None:
    story.enqueue(0, "a")
    dead(story, "tired")
    assert story.verdict()["I13"] == ["dead as tired, but that is no reason: id-a"]


# Cancels


def test_cancelled_job_is_not_delivered(enqueued: Story) -> None:
    enqueued.cancel(1, "a")
    enqueued.claim(2, "a")
    enqueued.keep("a", "cancelled")
    assert enqueued.verdict()["I13"] == ["cancel accepted, then delivered: id-a delivery 1"]


def test_claim_that_overlaps_a_cancel_may_win(enqueued: Story) -> None:
    enqueued.cancel(1, "a", "running")
    enqueued.claim(1.05, "a")
    enqueued.settle(2, "a", "fail")
    enqueued.keep("a", "cancelled")
    assert enqueued.verdict() == {}


@pytest.mark.parametrize(
    ("told", "state", "found"),
    [
        ("cancelled", "completed", ["cancel accepted, but it is completed: id-a"]),
        ("cancelled", "cancelled", []),
        ("running", "dead", ["cancel accepted, but it is dead: id-a"]),
        ("running", "completed", []),
    ],
)
def test_accepted_cancel_stands(enqueued: Story, told: str, state: str, found: list[str]) -> None:
    enqueued.claim(0.5, "a")
    enqueued.cancel(1, "a", told)
    enqueued.settle(2, "a", "complete" if state == "completed" else "fail", retryable=False)
    enqueued.keep("a", state, reason="not_retryable")
    assert enqueued.verdict().get("I13", []) == found


def test_job_asked_to_stop_is_not_retried(enqueued: Story) -> None:
    enqueued.claim(0.5, "a")
    enqueued.cancel(1, "a", "running")
    enqueued.settle(2, "a", "fail")
    enqueued.done("a", 4, delivery=2)
    assert enqueued.verdict()["I13"] == ["cancel accepted, then delivered: id-a delivery 2"]


def test_refused_cancel_cancels_nothing(enqueued: Story) -> None:
    enqueued.cancel(1, "a", kind="fail")
    enqueued.keep("a", "cancelled")
    assert enqueued.verdict()["I1"] == ["cancelled without a request: a (id-a)"]


def test_cancel_of_unknown_outcome_may_have_been_done(enqueued: Story) -> None:
    enqueued.cancel(1, "a", kind="info")
    enqueued.keep("a", "cancelled")
    assert enqueued.verdict() == {}


# Completions and results


@pytest.mark.parametrize(("kind", "breaches"), [("fail", 1), ("info", 0)])
def test_refused_completion_completes_nothing(enqueued: Story, kind: str, breaches: int) -> None:
    enqueued.claim(1, "a")
    enqueued.settle(2, "a", kind=kind, code="lease_lost")  # type: ignore[arg-type]
    enqueued.keep("a")
    assert len(enqueued.verdict().get("I12", [])) == breaches


def test_completion_lost_in_a_batch_completes_nothing(enqueued: Story) -> None:
    enqueued.claim(1, "a")
    enqueued.settle(2, "a", status="lease_lost")
    enqueued.keep("a")
    assert enqueued.verdict()["I12"] == ["completed without a completion: id-a"]


@pytest.mark.parametrize(("kept", "found"), [("", True), ("other", True), ("r", False)])
def test_result_of_the_accepted_completion_is_kept(enqueued: Story, kept: str, *, found: bool) -> None:
    enqueued.claim(1, "a")
    enqueued.settle(2, "a", result="r")
    enqueued.keep("a", result=kept)
    assert enqueued.verdict() == ({"I13": ["not the result that was accepted: id-a"]} if found else {})


@pytest.mark.parametrize(("kept", "found"), [("first", True), ("second", False)])
def test_result_of_a_stale_holder_is_not_kept(enqueued: Story, kept: str, *, found: bool) -> None:
    enqueued.claim(1, "a")
    enqueued.claim(2 + LEASE, "a", delivery=2)
    enqueued.settle(13, "a", delivery=2, result="second")
    enqueued.settle(14, "a", kind="fail", code="lease_lost", result="first")
    enqueued.keep("a", result=kept)
    assert enqueued.verdict() == ({"I13": ["not the result that was accepted: id-a"]} if found else {})


@pytest.mark.parametrize(("results", "found"), [({}, True), ({"id-a": "other"}, True), ({"id-a": "r"}, False)])
def test_api_gives_the_result_that_is_kept(enqueued: Story, results: dict[str, str], *, found: bool) -> None:
    enqueued.claim(1, "a")
    enqueued.settle(2, "a", result="r")
    enqueued.keep("a", result="r")
    told = enqueued.verdict(told={"id-a": "completed"}, results=results)
    assert told == ({"I13": ["the API gives another result than the database: id-a"]} if found else {})


def test_result_of_an_unanswered_completion_may_be_kept(enqueued: Story) -> None:
    enqueued.claim(1, "a")
    enqueued.settle(2, "a", kind="info", result="r")
    enqueued.keep("a", result="r")
    assert enqueued.verdict() == {}


# Long after a jump of the clock


def test_job_that_runs_early_long_after_a_jump(story: Story) -> None:
    story.jump(1, 3600)
    story.enqueue(20, "a", run_at=BEGIN + 3600 + 40)
    story.done("a", 25)
    assert story.verdict()["I11"] == ["early by 14.900 s: id-a delivery 1"]


def test_job_stored_by_a_refused_call_long_after_a_jump(story: Story) -> None:
    stamp = f"{int((BEGIN + 3620.02) * 1000):012x}"
    id = f"{stamp[:8]}-{stamp[8:]}-7000-8000-000000000000"
    story.jump(1, 3600)
    story.enqueue(20, "a", kind="fail")
    story.enqueue(21, "a", ids={"a": id})
    story.claim(22, "a", id=id)
    story.settle(23, "a", "fail", id=id, retryable=False)
    story.keep("a", "dead", id=id, reason="not_retryable", deliveries=1)
    assert story.verdict()["I10"] == ["reported as not done, but it was done: k, 0.080 s before"]


def test_instants_are_not_checked_around_a_jump(story: Story) -> None:
    story.enqueue(0, "a", run_at=BEGIN + 5)
    story.jump(6, -3600)
    story.done("a", 7)
    assert story.verdict() == {}
