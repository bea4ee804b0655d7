"""The decision when a lease ends: attempt budgets, back-off, attempt records, error
fingerprints."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.jobs.schemas import Attempt, JobError
from app.leases.retry_decision import (
    MAX_TEXT_BYTES,
    LeaseEnd,
    LeaseOutcome,
    backoff,
    decide,
    fingerprint,
    to_stored_error,
)
from app.leases.rows import LeaseRow, RetryDecision
from app.leases.schemas import SentError
from app.settings import Settings
from tests.table import table

# A broker of other tests runs in this process and uses `random` too; hypothesis would blame these
# tests.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
JOB, TOKEN = UUID(int=1), UUID(int=2)
SETTINGS = Settings.model_construct(
    max_crashes=3,
    max_deliveries=10,
    retry_base_seconds=10.0,
    retry_factor=3.0,
    retry_max_seconds=100.0,
    retry_jitter=0.5,
)
RUNNING = LeaseRow(
    id=JOB,
    lease_token=TOKEN,
    state="running",
    attempt=1,
    max_attempts=5,
    crashes=0,
    deliveries=1,
    run_at=NOW - timedelta(minutes=2),
    started_at=NOW - timedelta(minutes=1),
    lease_expires_at=NOW + timedelta(minutes=1),
    deadline_at=None,
    cancel_requested_at=None,
    worker_id="w1",
    retry=None,
    unreported_since=None,
    last_attempt_record=None,
)
BROKEN = JobError(message="it broke", error_type="Broken")


def decision(row: LeaseRow, outcome: LeaseOutcome, *, rng: float = 0, **lease_end: object) -> RetryDecision:
    error = BROKEN if outcome in ("fail", "expire") else None
    return decide(row, LeaseEnd(JOB, TOKEN, outcome, **{"error": error, **lease_end}), SETTINGS, NOW, rng)  # type: ignore[arg-type]


@table(
    ("outcome", "changes", "state", "reason", "attempt", "crashes"),
    [
        ("fail", {}, "scheduled", "retry_backoff", 1, 0),
        ("fail", {"attempt": 5}, "dead", "attempts_exhausted", 5, 0),
        ("fail", {"max_attempts": 1}, "dead", "attempts_exhausted", 1, 0),
        ("fail", {"crashes": 2}, "scheduled", "retry_backoff", 1, 2),
        ("fail", {"deliveries": 10}, "dead", "undeliverable", 1, 0),
        ("snooze", {}, "scheduled", "snoozed", 0, 0),
        ("snooze", {"attempt": 5}, "scheduled", "snoozed", 4, 0),
        ("snooze", {"deliveries": 10}, "dead", "undeliverable", 0, 0),
        ("release", {}, "ready", None, 0, 0),
        ("release", {"attempt": 5}, "ready", None, 4, 0),
        ("release", {"deliveries": 10}, "dead", "undeliverable", 0, 0),
        ("return", {}, "ready", None, 0, 0),
        ("reconcile", {"crashes": 2}, "ready", None, 0, 2),
        ("expire", {}, "ready", None, 1, 1),
        ("expire", {"crashes": 1}, "ready", None, 1, 2),
        ("expire", {"crashes": 2}, "dead", "poison", 1, 3),
        ("expire", {"attempt": 5}, "dead", "attempts_exhausted", 5, 1),
    ],
)
def test_each_outcome_uses_its_own_budget(
    outcome: LeaseOutcome, changes: dict[str, int], state: str, reason: str | None, attempt: int, crashes: int
) -> None:
    decided = decision(RUNNING._replace(**changes), outcome)  # type: ignore[arg-type]
    assert (decided.next_state, decided.reason, decided.attempt, decided.crashes) == (state, reason, attempt, crashes)


def test_non_retryable_failure_becomes_a_dead_letter_at_once() -> None:
    assert decision(RUNNING, "fail", retryable=False).reason == "not_retryable"


@table("outcome", ["fail", "snooze", "release", "expire"])
def test_cancelled_job_finishes_as_cancelled_for_every_outcome(outcome: LeaseOutcome) -> None:
    decided = decision(RUNNING._replace(cancel_requested_at=NOW, attempt=5, deliveries=10), outcome)
    assert (decided.next_state, decided.reason) == ("cancelled", "cancelled_by_user")


@table(
    ("outcome", "settled_as"),
    [("fail", "fail"), ("snooze", "snooze"), ("release", "release"), ("return", None), ("expire", None)],
)
def test_only_settlements_of_workers_are_recorded_for_replay(outcome: LeaseOutcome, settled_as: str | None) -> None:
    assert decision(RUNNING, outcome).settled_as == settled_as


def test_late_release_of_an_expired_lease_refunds_no_attempt() -> None:
    """The expiry was counted already; the attempt stays used."""
    assert decision(RUNNING._replace(state="ready", lease_expires_at=None), "release").attempt == 1


@table(
    ("recorded_start", "attempt", "replaces_record"),
    [
        (None, 2, False),  # a return or reconcile of the first run
        (RUNNING.started_at - timedelta(minutes=1), 2, False),  # the same after a run that failed
        (RUNNING.started_at, 1, True),  # an expiry or a timeout has counted and recorded the run
    ],
)
def test_late_failure_counts_and_records_its_run_once(
    recorded_start: datetime | None, attempt: int, *, replaces_record: bool
) -> None:
    record = None if recorded_start is None else Attempt(attempt=1, started_at=recorded_start, outcome="expire")
    late = RUNNING._replace(
        state="ready",
        lease_expires_at=None,
        last_attempt_record=None if record is None else msgspec.json.encode(record).decode(),
    )
    decided = decision(late, "fail")
    assert decided.attempt_record is not None
    recorded = msgspec.json.decode(decided.attempt_record, type=Attempt).attempt
    assert (decided.attempt, recorded, decided.replaces_record) == (attempt, attempt, replaces_record)


def test_late_failure_of_a_refunded_run_exhausts_the_attempts() -> None:
    assert decision(RUNNING._replace(state="ready", attempt=4), "fail").reason == "attempts_exhausted"


def test_late_release_of_a_postponed_job_makes_it_due_now() -> None:
    """A timeout has postponed the job. A ready job whose run_at lies ahead would run early."""
    postponed = RUNNING._replace(state="scheduled", lease_expires_at=None, run_at=NOW + timedelta(minutes=1))
    released = decision(postponed, "release")
    assert (released.next_state, released.run_at) == ("ready", NOW)


def test_retry_delay_grows_up_to_the_maximum() -> None:
    delays = [
        (decision(RUNNING._replace(attempt=attempt), "fail").run_at - NOW).total_seconds() for attempt in (1, 2, 3, 4)
    ]
    assert delays == [10, 30, 90, 100]


@table(("rng", "seconds"), [(-1, 5), (0, 10), (1, 15)])
def test_jitter_lengthens_or_shortens_the_delay_by_its_fraction(rng: float, seconds: float) -> None:
    assert decision(RUNNING, "fail", rng=rng).run_at - NOW == timedelta(seconds=seconds)


def test_retry_policy_of_the_job_overrides_the_settings() -> None:
    row = RUNNING._replace(attempt=3, retry='{"base_seconds": 1, "factor": 2, "jitter": 0}')
    assert decision(row, "fail", rng=1).run_at - NOW == timedelta(seconds=4)


def test_delay_set_by_the_worker_has_no_jitter() -> None:
    assert decision(RUNNING, "fail", rng=1, delay_seconds=7.0).run_at - NOW == timedelta(seconds=7)


@given(st.integers(1, 10**6), st.floats(0, 366 * 86400), st.floats(1, 1000), st.floats(0, 366 * 86400))
def test_backoff_never_overflows_or_exceeds_the_maximum(attempt: int, base: float, factor: float, limit: float) -> None:
    # With a smaller factor the loop takes one step per attempt; there are at most 1000 attempts.
    if base > 0 and factor > 1.01:
        assert 0 <= backoff(attempt, base, factor, limit) <= limit


@given(st.integers(1, 999), st.floats(0, 1000), st.floats(1, 10), st.floats(0, 1000), st.floats(0, 1), st.floats(-1, 1))
def test_delay_with_jitter_never_exceeds_the_maximum(
    attempt: int, base: float, factor: float, limit: float, jitter: float, rng: float
) -> None:
    policy = {"base_seconds": base, "factor": factor, "max_seconds": limit, "jitter": jitter}
    row = RUNNING._replace(attempt=attempt, max_attempts=1000, retry=msgspec.json.encode(policy).decode())
    # A job whose delay is 0 is ready at its earlier `run_at`.
    assert decision(row, "fail", rng=rng).run_at - NOW <= timedelta(seconds=limit)


@given(st.integers(1, 999), st.floats(0, 1000), st.floats(1, 10))
def test_backoff_never_decreases(attempt: int, base: float, factor: float) -> None:
    assert backoff(attempt, base, factor, 3600) <= backoff(attempt + 1, base, factor, 3600)


def test_run_that_costs_an_attempt_leaves_an_attempt_record() -> None:
    record = decision(RUNNING, "fail").attempt_record
    assert record is not None
    assert msgspec.json.decode(record, type=Attempt) == Attempt(
        attempt=1, worker_id="w1", started_at=RUNNING.started_at, ended_at=NOW, outcome="fail", error=BROKEN
    )


@table("outcome", ["snooze", "release", "return", "reconcile"])
def test_run_that_costs_no_attempt_leaves_no_attempt_record(outcome: LeaseOutcome) -> None:
    assert decision(RUNNING, outcome).attempt_record is None


@table(
    ("message", "expected"),
    [
        ("row 4711 is locked", "Broken: row # is locked"),
        ("took 1.5 s of 30", "Broken: took # s of #"),
        ("no user 'ada' in \"people\" or `staff`", "Broken: no user ? in ? or ?"),
        ("job 01a1e24b-7875-7000-8000-4007af56e171 failed", "Broken: job # failed"),
        ("address 0x1f, 0xdeadbeef and 0XAB", "Broken: address #, # and #"),
        ("commit deadbeef01 at 0x7f3635a7a200", "Broken: commit # at #"),
        ("connection refused", "Broken: connection refused"),
    ],
)
def test_fingerprint_masks_variable_parts_of_the_message(message: str, expected: str) -> None:
    assert fingerprint(JobError(message=message, error_type="Broken")) == expected


def test_fingerprint_without_error_type_uses_a_default_type() -> None:
    assert fingerprint(JobError(message="x")) == "error: x"


@given(st.text(max_size=2000), st.text(max_size=300))
def test_fingerprint_length_is_limited(message: str, error_type: str) -> None:
    assert len(fingerprint(JobError(message=message, error_type=error_type))) <= 250


def test_error_is_stored_without_nul_and_truncated() -> None:
    stored = to_stored_error(
        SentError(message="a\x00b" + "x" * 10_000, error_type="\x00" + "T" * 300, stack="s" * 10_000)
    )
    assert stored.message == ("ab" + "x" * 10_000)[:MAX_TEXT_BYTES]
    assert stored.error_type == "T" * 200
    assert stored.stack == "s" * MAX_TEXT_BYTES
