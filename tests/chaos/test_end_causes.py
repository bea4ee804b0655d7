"""Handwritten histories of how jobs end: the checker reports each violation, and accepts a similar
valid history.

Times are seconds from the start; a lease lasts ten seconds.
"""

import pytest

from tests.chaos.history_builder import LEASE_SECONDS, START, HistoryBuilder
from tests.chaos.transition_rules import MAX_CRASHES, MAX_DELIVERIES

# Dead letters


def fail_attempts(history: HistoryBuilder, count: int, *, retryable: bool = True) -> None:
    history.enqueue(0, "a")
    for delivery in range(1, count + 1):
        history.claim(2 * delivery, "a", delivery=delivery, max_attempts=3)
        history.settle(2 * delivery + 1, "a", "fail", delivery=delivery, retryable=retryable)


def store_dead_letter(history: HistoryBuilder, reason: str, **fields: float) -> None:
    counts = {"deliveries": 0, "attempt": 0, "max_attempts": 3, "ended": START + 100}
    history.store("a", "dead", **{"reason": reason, **counts, **fields})


def let_leases_expire(history: HistoryBuilder, count: int) -> float:
    """Claims without a further call of the worker. Returns when the last lease expires."""
    history.enqueue(0, "a")
    for delivery in range(1, count + 1):
        history.claim((LEASE_SECONDS + 1) * delivery, "a", delivery=delivery)
    return (LEASE_SECONDS + 1) * (count + 1)


@pytest.mark.parametrize(
    ("failed", "attempt", "found"),
    [
        (1, 1, "1 of 3 attempts were used"),
        (1, 3, "1 of 3 attempts were used"),
        (2, 2, "2 of 3 attempts were used"),
        (3, 3, ""),
    ],
)
def test_reason_attempts_exhausted_needs_as_many_failures(
    history: HistoryBuilder, failed: int, attempt: int, found: str
) -> None:
    fail_attempts(history, failed)
    store_dead_letter(history, "attempts_exhausted", deliveries=failed, attempt=attempt)
    assert history.violations().get("I13", []) == ([f"dead as attempts_exhausted, but {found}: id-a"] if found else [])


def test_released_deliveries_use_no_attempts(history: HistoryBuilder) -> None:
    history.enqueue(0, "a")
    for delivery in (1, 2, 3):
        history.claim(2 * delivery, "a", delivery=delivery, attempt=1, max_attempts=3)
        history.settle(2 * delivery + 1, "a", "release", delivery=delivery)
    store_dead_letter(history, "attempts_exhausted", deliveries=3, attempt=3)
    assert history.violations()["I13"] == ["dead as attempts_exhausted, but 0 of 3 attempts were used: id-a"]


def test_deliveries_with_a_lost_response_may_have_used_attempts(history: HistoryBuilder) -> None:
    fail_attempts(history, 1)
    store_dead_letter(history, "attempts_exhausted", deliveries=3, attempt=3)
    assert history.violations() == {}


@pytest.mark.parametrize(("retryable", "violations"), [(True, 1), (False, 0)])
def test_reason_not_retryable_needs_a_failure_with_retryable_false(
    history: HistoryBuilder, *, retryable: bool, violations: int
) -> None:
    fail_attempts(history, 1, retryable=retryable)
    store_dead_letter(history, "not_retryable", deliveries=1, attempt=1)
    assert len(history.violations().get("I13", [])) == violations


def test_rejected_failure_makes_no_dead_letter(history: HistoryBuilder) -> None:
    history.enqueue(0, "a")
    history.claim(1, "a")
    history.settle(2, "a", "fail", retryable=False, kind="fail", code="lease_lost")
    store_dead_letter(history, "not_retryable", deliveries=1, attempt=1)
    assert history.violations()["I13"] == ["dead as not_retryable, but its worker did not report it: id-a"]


@pytest.mark.parametrize(("crashes", "violations"), [(MAX_CRASHES - 1, 1), (MAX_CRASHES, 0)])
def test_reason_poison_needs_expired_leases(history: HistoryBuilder, crashes: int, violations: int) -> None:
    let_leases_expire(history, crashes)
    store_dead_letter(history, "poison", deliveries=crashes, attempt=crashes, crashes=MAX_CRASHES)
    assert len(history.violations().get("I13", [])) == violations


def test_reason_poison_before_the_last_lease_expiry_is_reported(history: HistoryBuilder) -> None:
    over = let_leases_expire(history, MAX_CRASHES)
    store_dead_letter(
        history, "poison", deliveries=MAX_CRASHES, attempt=MAX_CRASHES, crashes=MAX_CRASHES, ended=START + over - 5
    )
    assert history.violations()["I13"] == [f"dead as poison, but {MAX_CRASHES - 1} leases expired: id-a"]


@pytest.mark.parametrize(
    ("expires_at", "ended", "found"),
    [(0, 5, "it has no expires_at"), (8, 5, "3.000 s before expires_at"), (4, 5, "")],
)
def test_reason_expired_needs_a_start_deadline_that_has_passed(
    history: HistoryBuilder, expires_at: float, ended: float, found: str
) -> None:
    history.enqueue(0, "a", expires_at=START + expires_at if expires_at else 0)
    store_dead_letter(history, "expired", ended=START + ended)
    assert history.violations().get("I13", []) == ([f"dead as expired, but {found}: id-a"] if found else [])


def test_missed_start_deadline_of_a_started_job_is_reported(history: HistoryBuilder) -> None:
    history.enqueue(0, "a", expires_at=START + 4)
    history.claim(1, "a")
    store_dead_letter(history, "expired", deliveries=1, attempt=1, ended=START + 12)
    assert history.violations()["I13"] == ["dead as expired, but delivery 1 had started it: id-a"]


@pytest.mark.parametrize(("deliveries", "violations"), [(MAX_DELIVERIES - 1, 1), (MAX_DELIVERIES, 0)])
def test_reason_undeliverable_needs_many_deliveries(history: HistoryBuilder, deliveries: int, violations: int) -> None:
    history.enqueue(0, "a")
    store_dead_letter(history, "undeliverable", deliveries=deliveries)
    assert len(history.violations().get("I13", [])) == violations


def test_dead_letter_with_an_unknown_reason_is_reported(history: HistoryBuilder) -> None:
    history.enqueue(0, "a")
    store_dead_letter(history, "tired")
    assert history.violations()["I13"] == ["dead as tired, but that is not a known reason: id-a"]


# Cancels


def test_cancelled_job_is_not_delivered(one_job: HistoryBuilder) -> None:
    one_job.cancel(1, "a")
    one_job.claim(2, "a")
    one_job.store("a", "cancelled")
    assert one_job.violations()["I13"] == ["cancel accepted, then delivered: id-a delivery 1"]


def test_claim_that_overlaps_a_cancel_may_win(one_job: HistoryBuilder) -> None:
    one_job.cancel(1, "a", "running")
    one_job.claim(1.05, "a")
    one_job.settle(2, "a", "fail")
    one_job.store("a", "cancelled")
    assert one_job.violations() == {}


@pytest.mark.parametrize(
    ("response", "state", "found"),
    [
        ("cancelled", "completed", ["cancel accepted, but it is completed: id-a"]),
        ("cancelled", "cancelled", []),
        ("running", "dead", ["cancel accepted, but it is dead: id-a"]),
        ("running", "completed", []),
    ],
)
def test_accepted_cancel_is_final(one_job: HistoryBuilder, response: str, state: str, found: list[str]) -> None:
    one_job.claim(0.5, "a")
    one_job.cancel(1, "a", response)
    one_job.settle(2, "a", "complete" if state == "completed" else "fail", retryable=False)
    one_job.store("a", state, reason="not_retryable")
    assert one_job.violations().get("I13", []) == found


def test_job_with_requested_cancellation_is_not_retried(one_job: HistoryBuilder) -> None:
    one_job.claim(0.5, "a")
    one_job.cancel(1, "a", "running")
    one_job.settle(2, "a", "fail")
    one_job.complete_job("a", 4, delivery=2)
    assert one_job.violations()["I13"] == ["cancel accepted, then delivered: id-a delivery 2"]


def test_rejected_cancel_cancels_nothing(one_job: HistoryBuilder) -> None:
    one_job.cancel(1, "a", kind="fail")
    one_job.store("a", "cancelled")
    assert one_job.violations()["I1"] == ["cancelled without a request: a (id-a)"]


def test_cancel_of_unknown_outcome_may_have_been_done(one_job: HistoryBuilder) -> None:
    one_job.cancel(1, "a", kind="info")
    one_job.store("a", "cancelled")
    assert one_job.violations() == {}


# Completions and results


@pytest.mark.parametrize(("kind", "violations"), [("fail", 1), ("info", 0)])
def test_rejected_completion_completes_nothing(one_job: HistoryBuilder, kind: str, violations: int) -> None:
    one_job.claim(1, "a")
    one_job.settle(2, "a", kind=kind, code="lease_lost")  # type: ignore[arg-type]
    one_job.store("a")
    assert len(one_job.violations().get("I12", [])) == violations


def test_completion_lost_in_a_batch_completes_nothing(one_job: HistoryBuilder) -> None:
    one_job.claim(1, "a")
    one_job.settle(2, "a", status="lease_lost")
    one_job.store("a")
    assert one_job.violations()["I12"] == ["completed without a completion: id-a"]


@pytest.mark.parametrize(("kept", "found"), [("", True), ("other", True), ("r", False)])
def test_result_of_the_accepted_completion_is_stored(one_job: HistoryBuilder, kept: str, *, found: bool) -> None:
    one_job.claim(1, "a")
    one_job.settle(2, "a", result="r")
    one_job.store("a", result=kept)
    assert one_job.violations() == ({"I13": ["stored result is not the accepted one: id-a"]} if found else {})


@pytest.mark.parametrize(("kept", "found"), [("first", True), ("second", False)])
def test_result_of_a_stale_lease_is_not_stored(one_job: HistoryBuilder, kept: str, *, found: bool) -> None:
    one_job.claim(1, "a")
    one_job.claim(2 + LEASE_SECONDS, "a", delivery=2)
    one_job.settle(13, "a", delivery=2, result="second")
    one_job.settle(14, "a", kind="fail", code="lease_lost", result="first")
    one_job.store("a", result=kept)
    assert one_job.violations() == ({"I13": ["stored result is not the accepted one: id-a"]} if found else {})


@pytest.mark.parametrize(("results", "found"), [({}, True), ({"id-a": "other"}, True), ({"id-a": "r"}, False)])
def test_api_returns_the_stored_result(one_job: HistoryBuilder, results: dict[str, str], *, found: bool) -> None:
    one_job.claim(1, "a")
    one_job.settle(2, "a", result="r")
    one_job.store("a", result="r")
    violations = one_job.violations(api_states={"id-a": "completed"}, results=results)
    assert violations == ({"I13": ["result of the API differs from the database: id-a"]} if found else {})


def test_result_of_a_completion_without_response_may_be_stored(one_job: HistoryBuilder) -> None:
    one_job.claim(1, "a")
    one_job.settle(2, "a", kind="info", result="r")
    one_job.store("a", result="r")
    assert one_job.violations() == {}


# Long after a clock jump


def test_early_run_long_after_a_clock_jump_is_reported(history: HistoryBuilder) -> None:
    history.jump(1, 3600)
    history.enqueue(20, "a", run_at=START + 3600 + 40)
    history.complete_job("a", 25)
    assert history.violations()["I11"] == ["early by 14.900 s: id-a delivery 1"]


def test_job_stored_by_a_not_done_call_long_after_a_clock_jump_is_reported(history: HistoryBuilder) -> None:
    stamp = f"{int((START + 3620.02) * 1000):012x}"
    id = f"{stamp[:8]}-{stamp[8:]}-7000-8000-000000000000"
    history.jump(1, 3600)
    history.enqueue(20, "a", kind="fail")
    history.enqueue(21, "a", ids={"a": id})
    history.claim(22, "a", id=id)
    history.settle(23, "a", "fail", id=id, retryable=False)
    history.store("a", "dead", id=id, reason="not_retryable", deliveries=1)
    assert history.violations()["I10"] == ["reported as not done, but it was done: k, 0.080 s before"]


def test_times_are_not_checked_around_a_clock_jump(history: HistoryBuilder) -> None:
    history.enqueue(0, "a", run_at=START + 5)
    history.jump(6, -3600)
    history.complete_job("a", 7)
    assert history.violations() == {}
