"""What the statements about leases take and return, row by row."""

from datetime import datetime
from typing import NamedTuple
from uuid import UUID


class HeartbeatParams(NamedTuple):
    id: UUID
    token: UUID
    lease_seconds: int | None
    progress: str | None
    checkpoint: str | None


class RetryDecision(NamedTuple):
    """What the job becomes, and what it was at the time of the decision.

    The statement matches only a job that still is as it was: `was` is its state, `lease` its
    lease_expires_at. `entry` is the attempt record.
    """

    id: UUID
    token: UUID
    was: str
    lease: datetime | None
    unreported_since: datetime | None
    next_state: str
    reason: str | None
    settled_as: str | None
    run_at: datetime
    attempt: int
    crashes: int
    checkpoint: str | None
    entry: str | None
    error_type: str | None
    fingerprint: str


class LeaseRow(NamedTuple):
    id: UUID
    lease_token: UUID
    state: str
    attempt: int
    max_attempts: int
    crashes: int
    deliveries: int
    run_at: datetime
    started_at: datetime
    lease_expires_at: datetime | None
    deadline_at: datetime | None
    cancel_requested_at: datetime | None
    unreported_since: datetime | None
    worker_id: str | None
    retry: str | None


class SettledRow(NamedTuple):
    """A job whose lease has ended: the columns of `MovedJobRow`, and two more.

    `ran`: run time in seconds, if the job was completed.
    """

    id: UUID
    state: str
    job_type: str
    group_key: str | None
    run_at: datetime | None
    has_dependents: bool | None
    admission: int | None
    attempt: int
    ran: float | None


class SettlementRecord(NamedTuple):
    id: UUID
    state: str
    attempt: int
    run_at: datetime | None
    lease_token: UUID | None
    settled_as: str | None


class HeartbeatRow(NamedTuple):
    id: UUID
    lease_token: UUID
    lease_expires_at: datetime
    cancel: bool
