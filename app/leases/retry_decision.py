"""Decides what a job becomes when its lease ends other than by completion.

The job runs again, becomes dead or is cancelled. All functions are pure. They apply the limits on
attempts, crashes and deliveries, and compute the back-off, attempt records and error fingerprints.
"""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

import msgspec

from app.http.schema_types import UNSET, unset_if_none, value_or
from app.jobs.schemas import Attempt, JobError
from app.leases.rows import LeaseRow, RetryDecision
from app.leases.schemas import SentError
from app.queues.schemas import RetryPolicy
from app.settings import Settings

# A worker settles with:
#   fail, snooze, release
# The broker ends a lease with:
#   return      requeues the job, because the response of the claim was not delivered
#   reconcile   requeues the job, because its worker no longer reports the lease in its heartbeats
#   expire      the lease expired
#   timeout     the run took longer than timeout_seconds
LeaseOutcome = Literal["fail", "snooze", "release", "return", "reconcile", "expire", "timeout"]

# Suffix of settled_as for a fail or snooze without delay. The job then became ready instead of
# scheduled, and a repeated settlement must report the state `ready` (to_response.py).
IMMEDIATE = "at once"
MAX_TEXT_BYTES = 8 * 1024
_UUID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE)
_QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'|`[^`]*`")
_HEX = re.compile(r"\b(?:0x[0-9a-f]+|(?=[0-9a-f]*\d)[0-9a-f]{8,})\b", re.IGNORECASE)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_retry = msgspec.json.Decoder(RetryPolicy)
_attempt = msgspec.json.Decoder(Attempt)


@dataclass(frozen=True, slots=True)
class LeaseEnd:
    """A request to end one lease other than by completion."""

    job_id: UUID
    token: UUID
    outcome: LeaseOutcome
    error: JobError | None = None
    retryable: bool = True
    delay_seconds: float | None = None
    checkpoint: str | None = None


def decide(row: LeaseRow, lease_end: LeaseEnd, settings: Settings, now: datetime, jitter: float) -> RetryDecision:
    """Decides the job's next state. `jitter` is a random number from -1 to 1."""
    costs_attempt = lease_end.outcome in ("fail", "expire", "timeout")
    is_late, is_recorded = row.state != "running", _is_recorded(row)
    if is_late and costs_attempt and not is_recorded:
        # A return or a reconcile has refunded the attempt, so the late settlement counts it again.
        row = row._replace(attempt=row.attempt + 1)
    reason = _reason(row, lease_end, settings)
    next_state = _next_state(reason)
    delay = _delay(row, lease_end, settings, jitter) if next_state == "scheduled" else 0
    is_immediate = next_state == "scheduled" and delay <= 0
    refund = 0 if costs_attempt or is_late or next_state == "cancelled" else 1
    leaves_record = costs_attempt or next_state == "cancelled"
    return RetryDecision(
        id=row.id,
        token=row.lease_token,
        previous_state=row.state,
        expected_expiry=row.lease_expires_at if lease_end.outcome in ("expire", "timeout") else None,
        unreported_since=row.unreported_since if lease_end.outcome == "reconcile" else None,
        next_state="ready" if is_immediate else next_state,
        reason=None if is_immediate else reason,
        settled_as=_settled_as(lease_end.outcome, is_immediate=is_immediate),
        # A late release may find a job that a timeout has postponed until its retry: the job
        # becomes ready now.
        run_at=now + timedelta(seconds=delay) if next_state == "scheduled" else min(row.run_at, now),
        attempt=row.attempt - refund,
        crashes=row.crashes + (lease_end.outcome == "expire"),
        checkpoint=lease_end.checkpoint,
        attempt_record=_attempt_record(row, lease_end, now, cancelled=next_state == "cancelled")
        if leaves_record
        else None,
        replaces_record=leaves_record and is_recorded,
        error_type=value_or(lease_end.error.error_type, None) if lease_end.error else None,
        fingerprint=fingerprint(lease_end.error) if lease_end.error else reason or "",
    )


def _is_recorded(row: LeaseRow) -> bool:
    """Whether the last attempt record is of this run.

    If so, an expiry or a timeout has written the record. A return or a reconcile writes no record,
    because it refunds the attempt.
    """
    return row.last_attempt_record is not None and _attempt.decode(row.last_attempt_record).started_at == row.started_at


def _settled_as(outcome: LeaseOutcome, *, is_immediate: bool) -> str | None:
    """Returns the outcome to store with the token, for the response of a repeated settlement.

    Returns None if the broker ends the lease, because only a worker's settlement uses up the token.
    """
    if outcome not in ("fail", "snooze", "release"):
        return None
    return f"{outcome} {IMMEDIATE}" if is_immediate else outcome


def _reason(row: LeaseRow, lease_end: LeaseEnd, settings: Settings) -> str | None:
    """Returns the state_reason of the next state. Returns None for `ready`, which has no reason."""
    if row.cancel_requested_at is not None:
        return "cancelled_by_user"
    if lease_end.outcome == "fail" and not lease_end.retryable:
        return "not_retryable"
    if lease_end.outcome == "expire" and row.crashes + 1 >= settings.max_crashes:
        return "poison"
    if lease_end.outcome in ("fail", "expire", "timeout") and row.attempt >= row.max_attempts:
        return "attempts_exhausted"
    if row.deliveries >= settings.max_deliveries:
        return "undeliverable"
    return {"fail": "retry_backoff", "timeout": "retry_backoff", "snooze": "snoozed"}.get(lease_end.outcome)


def _next_state(reason: str | None) -> str:
    if reason is None:
        return "ready"
    if reason in ("retry_backoff", "snoozed"):
        return "scheduled"
    return "cancelled" if reason == "cancelled_by_user" else "dead"


def _delay(row: LeaseRow, lease_end: LeaseEnd, settings: Settings, jitter: float) -> float:
    if lease_end.delay_seconds is not None:
        return lease_end.delay_seconds
    policy = _retry.decode(row.retry) if row.retry else RetryPolicy()
    base = value_or(policy.base_seconds, settings.retry_base_seconds)
    factor = value_or(policy.factor, settings.retry_factor)
    limit = value_or(policy.max_seconds, settings.retry_max_seconds)
    spread = 1 + value_or(policy.jitter, settings.retry_jitter) * jitter
    return min(backoff(row.attempt, base, factor, limit) * spread, limit)


def backoff(attempt: int, base: float, factor: float, limit: float) -> float:
    """Returns the delay in seconds after this attempt, without jitter.

    Multiplies step by step, because a power with a large exponent could overflow.
    """
    delay = base
    for _ in range(attempt - 1):
        if delay >= limit or factor == 1:
            break
        delay *= factor
    return min(delay, limit)


def _attempt_record(row: LeaseRow, lease_end: LeaseEnd, now: datetime, *, cancelled: bool) -> str:
    attempt = Attempt(
        attempt=row.attempt,
        worker_id=unset_if_none(row.worker_id),
        started_at=row.started_at,
        ended_at=now,
        outcome="cancel" if cancelled else "fail" if lease_end.outcome == "timeout" else lease_end.outcome,
        error=UNSET if lease_end.error is None else lease_end.error,
    )
    return msgspec.json.encode(attempt).decode()


def to_stored_error(sent: SentError) -> JobError:
    """Prepares a worker's error for storage: truncates texts, and removes NUL characters.

    Postgres rejects NUL in texts.
    """
    return JobError(
        message=_clean(sent.message),
        error_type=UNSET if sent.error_type is UNSET else _clean(sent.error_type)[:200],
        stack=UNSET if sent.stack is UNSET else _clean(sent.stack),
        details=sent.details,
    )


def _clean(text: str) -> str:
    return (
        text.replace("\x00", "").encode()[:MAX_TEXT_BYTES].decode(errors="ignore")
    )  # cut by bytes, but never within a character


def fingerprint(error: JobError) -> str:
    """Returns the fingerprint of an error, by which failures are grouped.

    Errors that differ only in numbers, ids and quoted strings have the same fingerprint.
    """
    message = error.message[:500]
    for pattern, mask in ((_QUOTED, "?"), (_UUID, "#"), (_HEX, "#"), (_NUMBER, "#")):
        message = pattern.sub(mask, message)
    return f"{value_or(error.error_type, 'error')}: {message}"[:250]


TIMED_OUT = JobError(message="the run took longer than its timeout_seconds", error_type="timeout")
EXPIRED = JobError(
    message="the lease expired: neither a heartbeat nor a settlement arrived in time", error_type="lease_expired"
)
