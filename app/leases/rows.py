"""Context, parameters and results of claims, and of the statements in claims.sql and leases.sql."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from app.db.lanes import FIRST_ID, LAST_ID, digest
from app.http.authorization import Access
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

    With `poll_slices` one statement serves several claims with otherwise equal parameters.
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


class ClaimContext(NamedTuple):
    """The caller of a claim: its Idempotency-Key and the access of its API key.

    `has_settled`: the request has also settled jobs. Then no error may follow, because an error
    says that nothing was done, and hides the results of the settlements. A quota that is used up,
    or an API key that was revoked or has expired, then ends the claim without jobs.
    """

    key: str | None
    access: Access
    has_settled: bool

    @property
    def digest(self) -> UUID:
        """The hash under which the Idempotency-Key is stored. It includes the caller's name, if
        there is one, because two callers may use the same key.
        """
        if self.access.caller:
            return digest("claim", self.key or "", self.access.caller)
        return digest("claim", self.key or "")

    def is_key_active(self) -> bool:
        """Whether the API key is active. Raises Unauthenticated if it is not, except for a request
        that has settled jobs."""
        if not self.has_settled:
            self.access.check_key_active()
        return not self.access.has_key_ended()


class ClaimResult(NamedTuple):
    """The result of a claim.

    retry_at   when a rate limit or the caller's quota may allow a job again; None if a job may come
               at any moment
    skipped    whether a lane was skipped because its lock was not free
    repeated   whether an earlier claim had the same Idempotency-Key; `rows` has the leases of that
               claim that have not ended, possibly none
    ends_wait  whether the caller may not claim now, and nothing would wake it when it may: its quota of
               leases is used up, or its API key has ended
    """

    rows: list[ClaimedRow]
    retry_at: datetime | None = None
    skipped: bool = False
    repeated: bool = False
    ends_wait: bool = False


class ScanRange(NamedTuple):
    """A part of a lane: the priorities from `highest` down to `lowest`.

    Of each priority, it contains the ids greater than `after` and up to `until`.
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
    """What a job becomes when its lease ends, and what it was when that was decided.

    The statement that applies it changes only a job that has not changed since.

    previous_state    state at the decision
    expected_expiry   lease_expires_at at the decision, if a heartbeat makes the decision invalid
    unreported_since  the same for a reconcile, which a heartbeat makes invalid, too
    attempt_record    the record of this run, if it leaves one
    replaces_record   whether `attempt_record` replaces the last record, which is of the same run
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
    """A lease that can be ended. `last_attempt_record` is read only if the job is not running."""

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
    """A job whose lease has ended: the columns of `MovedJobRow`, `attempt` and `run_seconds`.

    `run_seconds` is the duration of the run if the job was completed.
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
