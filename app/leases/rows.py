"""What claims and the statements about leases take and return, row by row."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from app.db.lanes import FIRST_ID, LAST_ID
from app.jobs.rows import ClaimedRow
from app.server.exchange import Client

HIGHEST_PRIORITY, LOWEST_PRIORITY = 32767, -32768


class PollSlice(NamedTuple):
    """The part of a shared claim statement that belongs to one poller."""

    limit: int
    worker_id: str | None
    lease_seconds: int | None


class ClaimParams(NamedTuple):
    """What a claim requests from each lane, and for which worker.

    With `poll_slices` it stands for several claims with otherwise equal parameters.
    """

    worker_id: str | None
    secret: str
    lease_seconds: int | None
    default_lease_seconds: int
    max_bytes: int
    allow_one_oversized: bool
    job_types: Sequence[str] | None
    quota_owner: str | None = None
    poll_slices: Sequence[PollSlice] = ()
    client: Client | None = None


class ClaimResult(NamedTuple):
    """The result of a claim.

    retry_at   when a rate limit or the caller's quota may allow a job again; None if a job may come
               at any moment
    skipped    whether a lane was skipped because its lock was not free
    repeated   whether this is a repeated claim; then `rows` has its leases that have not ended,
               possibly none
    """

    rows: list[ClaimedRow]
    retry_at: datetime | None = None
    skipped: bool = False
    repeated: bool = False


class ScanRange(NamedTuple):
    """A part of a lane.

    The priorities from `highest` down to `lowest`, and in each of them the ids greater than `after`
    and up to `until`.
    """

    highest: int
    lowest: int
    after: UUID
    until: UUID


FULL_RANGE = (ScanRange(HIGHEST_PRIORITY, LOWEST_PRIORITY, FIRST_ID, LAST_ID),)


class LanePolicy(NamedTuple):
    """How jobs of a lane are claimed.

    held_groups   groups whose jobs need an admission (see `is_held` in fragments.sql)
    fair          whether jobs are claimed in the order of their admissions
    uses_slot     whether leases count against max_running, as in `Queue.uses_slot`
    scan_ranges   where to read, in this order
    """

    held_groups: Sequence[str] | None = None
    fair: bool = False
    uses_slot: bool | None = None
    scan_ranges: Sequence[ScanRange] = FULL_RANGE


class HeartbeatParams(NamedTuple):
    id: UUID
    token: UUID
    lease_seconds: int | None
    progress: str | None
    checkpoint: str | None


class RetryDecision(NamedTuple):
    """What the job becomes, and what it was at the time of the decision.

    The statement matches only a job that still is as it was.

    previous_state    its state then
    expected_expiry   its lease_expires_at then, if a heartbeat makes the decision invalid
    attempt_record    the record of this run, if it is counted as an attempt
    replaces_record   whether that takes the place of the last record, which is about the same run
    """

    id: UUID
    token: UUID
    previous_state: str
    expected_expiry: datetime | None
    unreported_since: datetime | None
    next_state: str
    reason: str | None
    settled_as: str | None
    run_at: datetime
    attempt: int
    crashes: int
    checkpoint: str | None
    attempt_record: str | None
    replaces_record: bool
    error_type: str | None
    fingerprint: str


class LeaseRow(NamedTuple):
    """A lease that can be ended. `last_attempt_record` is read only if the job does not run."""

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
    last_attempt_record: str | None


class SettledRow(NamedTuple):
    """A job whose lease has ended: the columns of `MovedJobRow`, and two more.

    `run_seconds`: how long the run took, if the job was completed.
    """

    id: UUID
    state: str
    job_type: str
    group_key: str | None
    run_at: datetime | None
    has_dependents: bool | None
    admission: int | None
    attempt: int
    run_seconds: float | None


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
