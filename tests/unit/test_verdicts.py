"""What becomes of a job whose lease ends: budgets, back-off, the account, the fingerprint."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.jobs.schemas import Attempt, JobError
from app.leases.retry_decision import (
    MAX_TEXT,
    LeaseEnd,
    LeaseOutcome,
    RetryDecision,
    backoff,
    decide,
    fingerprint,
    stored_error,
)
from app.leases.schemas import SentError
from app.leases.store import LeaseRow
from app.settings import Settings

# The broker of other tests lives in this process and rolls dice too: hypothesis takes that for ours.
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
    missing_since=None,
)
BROKEN = JobError(message="it broke", error_type="Broken")


def decision(row: LeaseRow, outcome: LeaseOutcome, *, rng: float = 0, **lease_end: object) -> RetryDecision:
    error = BROKEN if outcome in ("fail", "expire") else None
    return decide(row, LeaseEnd(JOB, TOKEN, outcome, **{"error": error, **lease_end}), SETTINGS, NOW, rng)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outcome", "was", "state", "reason", "attempt", "crashes"),
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
        ("undo", {}, "ready", None, 0, 0),
        ("reclaim", {"crashes": 2}, "ready", None, 0, 2),
        ("expire", {}, "ready", None, 1, 1),
        ("expire", {"crashes": 1}, "ready", None, 1, 2),
        ("expire", {"crashes": 2}, "dead", "poison", 1, 3),
        ("expire", {"attempt": 5}, "dead", "attempts_exhausted", 5, 1),
    ],
)
def test_each_ending_spends_its_own_budget(
    outcome: LeaseOutcome, was: dict[str, int], state: str, reason: str | None, attempt: int, crashes: int
) -> None:
    judged = decision(RUNNING._replace(**was), outcome)  # type: ignore[arg-type]
    assert (judged.next_state, judged.reason, judged.attempt, judged.crashes) == (state, reason, attempt, crashes)


def test_what_cannot_be_retried_is_dead_at_once() -> None:
    assert decision(RUNNING, "fail", retryable=False).reason == "not_retryable"


@pytest.mark.parametrize("outcome", ["fail", "snooze", "release", "expire"])
def test_a_cancelled_job_ends_cancelled_whatever_its_worker_says(outcome: LeaseOutcome) -> None:
    judged = decision(RUNNING._replace(cancel_requested_at=NOW, attempt=5, deliveries=10), outcome)
    assert (judged.next_state, judged.reason) == ("cancelled", "cancelled_by_user")


@pytest.mark.parametrize(
    ("outcome", "remembered"),
    [("fail", "fail"), ("snooze", "snooze"), ("release", "release"), ("undo", None), ("expire", None)],
)
def test_only_a_workers_word_can_be_repeated(outcome: LeaseOutcome, remembered: str | None) -> None:
    assert decision(RUNNING, outcome).settled_as == remembered


def test_a_late_release_of_an_expired_lease_gives_back_no_attempt() -> None:
    """The expiry has been counted; what it cost stays spent."""
    assert decision(RUNNING._replace(state="ready", lease_expires_at=None), "release").attempt == 1


def test_a_retry_waits_longer_each_time_up_to_the_cap() -> None:
    delays = [
        (decision(RUNNING._replace(attempt=attempt), "fail").run_at - NOW).total_seconds() for attempt in (1, 2, 3, 4)
    ]
    assert delays == [10, 30, 90, 100]


@pytest.mark.parametrize(("rng", "seconds"), [(-1, 5), (0, 10), (1, 15)])
def test_jitter_stretches_or_shortens_by_its_share(rng: float, seconds: float) -> None:
    assert decision(RUNNING, "fail", rng=rng).run_at - NOW == timedelta(seconds=seconds)


def test_the_jobs_own_policy_goes_before_the_settings() -> None:
    row = RUNNING._replace(attempt=3, retry='{"base_seconds": 1, "factor": 2, "jitter": 0}')
    assert decision(row, "fail", rng=1).run_at - NOW == timedelta(seconds=4)


def test_a_worker_may_name_the_delay_and_it_has_no_jitter() -> None:
    assert decision(RUNNING, "fail", rng=1, delay_seconds=7.0).run_at - NOW == timedelta(seconds=7)


@given(st.integers(1, 10**6), st.floats(0, 366 * 86400), st.floats(1, 1000), st.floats(0, 366 * 86400))
def test_back_off_never_overflows_and_never_exceeds_its_cap(
    attempt: int, base: float, factor: float, most: float
) -> None:
    if (
        base > 0 and factor > 1.01
    ):  # slower growth than that takes as many steps as attempts, of which there are 1000 at most
        assert 0 <= backoff(attempt, base, factor, most) <= most


@given(st.integers(1, 999), st.floats(0, 1000), st.floats(1, 10))
def test_back_off_never_gets_shorter(attempt: int, base: float, factor: float) -> None:
    assert backoff(attempt, base, factor, 3600) <= backoff(attempt + 1, base, factor, 3600)


def test_an_execution_that_counted_is_accounted_for() -> None:
    entry = decision(RUNNING, "fail").entry
    assert entry is not None
    assert msgspec.json.decode(entry, type=Attempt) == Attempt(
        attempt=1, worker_id="w1", started_at=RUNNING.started_at, ended_at=NOW, outcome="fail", error=BROKEN
    )


@pytest.mark.parametrize("outcome", ["snooze", "release", "undo", "reclaim"])
def test_one_that_did_not_count_is_not(outcome: LeaseOutcome) -> None:
    assert decision(RUNNING, outcome).entry is None


@pytest.mark.parametrize(
    ("message", "masked"),
    [
        ("row 4711 is locked", "Broken: row # is locked"),
        ("took 1.5 s of 30", "Broken: took # s of #"),
        ("no user 'ada' in \"people\" or `staff`", "Broken: no user ? in ? or ?"),
        ("job 01a1e24b-7875-7000-8000-4007af56e171 failed", "Broken: job # failed"),
        ("commit deadbeef01 at 0x7f3635a7a200", "Broken: commit # at #"),
        ("connection refused", "Broken: connection refused"),
    ],
)
def test_a_fingerprint_masks_what_differs_from_case_to_case(message: str, masked: str) -> None:
    assert fingerprint(JobError(message=message, error_type="Broken")) == masked


def test_a_fingerprint_without_a_type_has_one_all_the_same() -> None:
    assert fingerprint(JobError(message="x")) == "error: x"


@given(st.text(max_size=2000), st.text(max_size=300))
def test_a_fingerprint_is_short(message: str, error_type: str) -> None:
    assert len(fingerprint(JobError(message=message, error_type=error_type))) <= 250


def test_an_error_is_kept_without_nul_and_cut() -> None:
    kept = stored_error(SentError(message="a\x00b" + "x" * 10_000, error_type="\x00" + "T" * 300, stack="s" * 10_000))
    assert kept.message == ("ab" + "x" * 10_000)[:MAX_TEXT]
    assert kept.error_type == "T" * 200
    assert kept.stack == "s" * MAX_TEXT
