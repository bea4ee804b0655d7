"""Handwritten histories about how jobs end: the checker reports each invalid one, and accepts a similar valid one.

Times are seconds from the beginning; a lease lasts ten.
"""

import pytest

from tests.chaos.history_builder import START, LEASE_SECONDS, HistoryBuilder
from tests.chaos.transition_rules import MAX_CRASHES, MAX_DELIVERIES

# Dead letters


def failures(history: HistoryBuilder, count: int, *, retryable: bool = True) -> None:
    history.enqueue(0, "a")
    for delivery in range(1, count + 1):
        history.claim(2 * delivery, "a", delivery=delivery, max_attempts=3)
        history.settle(2 * delivery + 1, "a", "fail", delivery=delivery, retryable=retryable)


def dead(history: HistoryBuilder, reason: str, **fields: float) -> None:
    counts = {"deliveries": 0, "attempt": 0, "max_attempts": 3, "ended": START + 100}
    history.store("a", "dead", **{"reason": reason, **counts, **fields})


def silent(history: HistoryBuilder, count: int) -> float:
    """Leases without a further call of their worker. Returns when the last expires."""
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
def test_attempts_exhausted_needs_as_many_failures(
    history: HistoryBuilder, failed: int, attempt: int, found: str
) -> None:
    failures(history, failed)
    dead(history, "attempts_exhausted", deliveries=failed, attempt=attempt)
    assert history.violations().get("I13", []) == ([f"dead as attempts_exhausted, but {found}: id-a"] if found else [])


def test_released_deliveries_exhaust_no_attempts(history: HistoryBuilder) -> None:
    history.enqueue(0, "a")
    for delivery in (1, 2, 3):
        history.claim(2 * delivery, "a", delivery=delivery, attempt=1, max_attempts=3)
        history.settle(2 * delivery + 1, "a", "release", delivery=delivery)
    dead(history, "attempts_exhausted", deliveries=3, attempt=3)
    assert history.violations()["I13"] == ["dead as attempts_exhausted, but 0 of 3 attempts were used: id-a"]


def test_deliveries_whose_answer_was_lost_may_have_spent_attempts(history: HistoryBuilder) -> None:
    failures(history, 1)
    dead(history, "attempts_exhausted", deliveries=3, attempt=3)
    assert history.violations() == {}


@pytest.mark.parametrize(("retryable", "breaches"), [(True, 1), (False, 0)])
def test_not_retryable_needs_a_failure_with_retryable_false(
    history: HistoryBuilder, *, retryable: bool, violations: int
) -> None:
    failures(history, 1, retryable=retryable)
    dead(history, "not_retryable", deliveries=1, attempt=1)
    assert len(history.violations().get("I13", [])) == violations


def test_refused_failure_kills_no_job(history: HistoryBuilder) -> None:
    history.enqueue(0, "a")
    history.claim(1, "a")
    history.settle(2, "a", "fail", retryable=False, kind="fail", code="lease_lost")
    dead(history, "not_retryable", deliveries=1, attempt=1)
    assert history.violations()["I13"] == ["dead as not_retryable, but its worker did not report it: id-a"]


@pytest.mark.parametrize(("crashes", "breaches"), [(MAX_CRASHES - 1, 1), (MAX_CRASHES, 0)])
def test_poison_needs_leases_that_ran_out(history: HistoryBuilder, crashes: int, violations: int) -> None:
    silent(history, crashes)
    dead(history, "poison", deliveries=crashes, attempt=crashes, crashes=MAX_CRASHES)
    assert len(history.violations().get("I13", [])) == violations


def test_poison_before_the_last_lease_has_run_out(history: HistoryBuilder) -> None:
    over = silent(history, MAX_CRASHES)
    dead(history, "poison", deliveries=MAX_CRASHES, attempt=MAX_CRASHES, crashes=MAX_CRASHES, ended=START + over - 5)
    assert history.violations()["I13"] == [f"dead as poison, but {MAX_CRASHES - 1} leases expired: id-a"]


@pytest.mark.parametrize(
    ("expires_at", "ended", "found"),
    [(0, 5, "it has no expires_at"), (8, 5, "3.000 s before expires_at"), (4, 5, "")],
)
def test_expired_needs_a_start_deadline_that_has_passed(
    history: HistoryBuilder, expires_at: float, ended: float, found: str
) -> None:
    history.enqueue(0, "a", expires_at=START + expires_at if expires_at else 0)
    dead(history, "expired", ended=START + ended)
    assert history.violations().get("I13", []) == ([f"dead as expired, but {found}: id-a"] if found else [])


def test_expired_although_it_had_begun(history: HistoryBuilder) -> None:
    history.enqueue(0, "a", expires_at=START + 4)
    history.claim(1, "a")
    dead(history, "expired", deliveries=1, attempt=1, ended=START + 12)
    assert history.violations()["I13"] == ["dead as expired, but delivery 1 had started it: id-a"]


@pytest.mark.parametrize(("deliveries", "breaches"), [(MAX_DELIVERIES - 1, 1), (MAX_DELIVERIES, 0)])
def test_undeliverable_needs_many_deliveries(history: HistoryBuilder, deliveries: int, violations: int) -> None:
    history.enqueue(0, "a")
    dead(history, "undeliverable", deliveries=deliveries)
    assert len(history.violations().get("I13", [])) == violations


def test_death_without_a_known_reason(history: HistoryBuilder) -> None:
    history.enqueue(0, "a")
    dead(history, "tired")
    assert history.violations()["I13"] == ["dead as tired, but that is not a known reason: id-a"]


# Cancels


def test_cancelled_job_is_not_delivered(enqueued: HistoryBuilder) -> None:
    enqueued.cancel(1, "a")
    enqueued.claim(2, "a")
    enqueued.store("a", "cancelled")
    assert enqueued.violations()["I13"] == ["cancel accepted, then delivered: id-a delivery 1"]


def test_claim_that_overlaps_a_cancel_may_win(enqueued: HistoryBuilder) -> None:
    enqueued.cancel(1, "a", "running")
    enqueued.claim(1.05, "a")
    enqueued.settle(2, "a", "fail")
    enqueued.store("a", "cancelled")
    assert enqueued.violations() == {}


@pytest.mark.parametrize(
    ("response", "state", "found"),
    [
        ("cancelled", "completed", ["cancel accepted, but it is completed: id-a"]),
        ("cancelled", "cancelled", []),
        ("running", "dead", ["cancel accepted, but it is dead: id-a"]),
        ("running", "completed", []),
    ],
)
def test_accepted_cancel_stands(enqueued: HistoryBuilder, response: str, state: str, found: list[str]) -> None:
    enqueued.claim(0.5, "a")
    enqueued.cancel(1, "a", response)
    enqueued.settle(2, "a", "complete" if state == "completed" else "fail", retryable=False)
    enqueued.store("a", state, reason="not_retryable")
    assert enqueued.violations().get("I13", []) == found


def test_job_asked_to_stop_is_not_retried(enqueued: HistoryBuilder) -> None:
    enqueued.claim(0.5, "a")
    enqueued.cancel(1, "a", "running")
    enqueued.settle(2, "a", "fail")
    enqueued.complete_job("a", 4, delivery=2)
    assert enqueued.violations()["I13"] == ["cancel accepted, then delivered: id-a delivery 2"]


def test_refused_cancel_cancels_nothing(enqueued: HistoryBuilder) -> None:
    enqueued.cancel(1, "a", kind="fail")
    enqueued.store("a", "cancelled")
    assert enqueued.violations()["I1"] == ["cancelled without a request: a (id-a)"]


def test_cancel_of_unknown_outcome_may_have_been_done(enqueued: HistoryBuilder) -> None:
    enqueued.cancel(1, "a", kind="info")
    enqueued.store("a", "cancelled")
    assert enqueued.violations() == {}


# Completions and results


@pytest.mark.parametrize(("kind", "breaches"), [("fail", 1), ("info", 0)])
def test_refused_completion_completes_nothing(enqueued: HistoryBuilder, kind: str, violations: int) -> None:
    enqueued.claim(1, "a")
    enqueued.settle(2, "a", kind=kind, code="lease_lost")  # type: ignore[arg-type]
    enqueued.store("a")
    assert len(enqueued.violations().get("I12", [])) == violations


def test_completion_lost_in_a_batch_completes_nothing(enqueued: HistoryBuilder) -> None:
    enqueued.claim(1, "a")
    enqueued.settle(2, "a", status="lease_lost")
    enqueued.store("a")
    assert enqueued.violations()["I12"] == ["completed without a completion: id-a"]


@pytest.mark.parametrize(("kept", "found"), [("", True), ("other", True), ("r", False)])
def test_result_of_the_accepted_completion_is_kept(enqueued: HistoryBuilder, kept: str, *, found: bool) -> None:
    enqueued.claim(1, "a")
    enqueued.settle(2, "a", result="r")
    enqueued.store("a", result=kept)
    assert enqueued.violations() == ({"I13": ["stored result is not the accepted one: id-a"]} if found else {})


@pytest.mark.parametrize(("kept", "found"), [("first", True), ("second", False)])
def test_result_of_a_stale_holder_is_not_kept(enqueued: HistoryBuilder, kept: str, *, found: bool) -> None:
    enqueued.claim(1, "a")
    enqueued.claim(2 + LEASE_SECONDS, "a", delivery=2)
    enqueued.settle(13, "a", delivery=2, result="second")
    enqueued.settle(14, "a", kind="fail", code="lease_lost", result="first")
    enqueued.store("a", result=kept)
    assert enqueued.violations() == ({"I13": ["stored result is not the accepted one: id-a"]} if found else {})


@pytest.mark.parametrize(("results", "found"), [({}, True), ({"id-a": "other"}, True), ({"id-a": "r"}, False)])
def test_api_gives_the_result_that_is_kept(enqueued: HistoryBuilder, results: dict[str, str], *, found: bool) -> None:
    enqueued.claim(1, "a")
    enqueued.settle(2, "a", result="r")
    enqueued.store("a", result="r")
    violations = enqueued.violations(api_states={"id-a": "completed"}, results=results)
    assert violations == ({"I13": ["result of the API differs from the database: id-a"]} if found else {})


def test_result_of_an_unanswered_completion_may_be_kept(enqueued: HistoryBuilder) -> None:
    enqueued.claim(1, "a")
    enqueued.settle(2, "a", kind="info", result="r")
    enqueued.store("a", result="r")
    assert enqueued.violations() == {}


# Long after a jump of the clock


def test_job_that_runs_early_long_after_a_jump(history: HistoryBuilder) -> None:
    history.jump(1, 3600)
    history.enqueue(20, "a", run_at=START + 3600 + 40)
    history.complete_job("a", 25)
    assert history.violations()["I11"] == ["early by 14.900 s: id-a delivery 1"]


def test_job_stored_by_a_refused_call_long_after_a_jump(history: HistoryBuilder) -> None:
    stamp = f"{int((START + 3620.02) * 1000):012x}"
    id = f"{stamp[:8]}-{stamp[8:]}-7000-8000-000000000000"
    history.jump(1, 3600)
    history.enqueue(20, "a", kind="fail")
    history.enqueue(21, "a", ids={"a": id})
    history.claim(22, "a", id=id)
    history.settle(23, "a", "fail", id=id, retryable=False)
    history.store("a", "dead", id=id, reason="not_retryable", deliveries=1)
    assert history.violations()["I10"] == ["reported as not done, but it was done: k, 0.080 s before"]


def test_instants_are_not_checked_around_a_jump(history: HistoryBuilder) -> None:
    history.enqueue(0, "a", run_at=START + 5)
    history.jump(6, -3600)
    history.complete_job("a", 7)
    assert history.violations() == {}
