"""The parameters and results of claims, and of the statements in claims.sql and leases.sql."""

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
    """The part of a shared claim that belongs to one poll."""

    limit: int
    worker_id: str | None
    lease_seconds: int | None


class ClaimParams(NamedTuple):
    """The parameters of a claim from one lane.

    With `poll_slices`, one statement serves several claims whose other parameters are equal.
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
    """The Idempotency-Key of a claim (`key`), and the access of its API key.

    `has_settled` says whether the request has also settled jobs. An error would then hide the
    results of the settlements, and say that nothing was done. So the claim returns no jobs instead
    of an error if the quota is used up, or if the API key was revoked or has expired.
    """

    key: str | None
    access: Access
    has_settled: bool

    @property
    def digest(self) -> UUID:
        """The hash under which the Idempotency-Key is stored.

        If the caller has a name, the hash includes it, because two callers may use the same key.
        """
        if self.access.caller:
            return digest("claim", self.key or "", self.access.caller)
        return digest("claim", self.key or "")

    def is_key_active(self) -> bool:
        """Whether the API key is active: neither revoked nor expired.

        For an inactive key, raises Unauthenticated, unless the request has settled jobs.
        """
        if not self.has_settled:
            self.access.check_key_active()
        return not self.access.has_key_ended()


class ClaimResult(NamedTuple):
    """The result of a claim.

    retry_at   when a rate limit or the caller's quota may allow a job again; None if a job may
               become claimable at any moment
    skipped    whether a lane was skipped because its lock was not free
    repeated   whether an earlier claim had the same Idempotency-Key; `rows` has the leases of that
               claim that are still live, possibly none
    ends_wait  whether to respond without waiting, because no wake-up would tell the poller when it
               may claim: the quota of leases is used up, or the API key was revoked or has expired
    """

    rows: list[ClaimedRow]
    retry_at: datetime | None = None
    skipped: bool = False
    repeated: bool = False
    ends_wait: bool = False


class ScanRange(NamedTuple):
    """A part of a lane: the priorities from `highest` down to `lowest`.

    A scan range contains, of each of these priorities, the ready spans that begin after the id
    `after`, and at `until` at the latest.
    """

    highest: int
    lowest: int
    after: UUID
    until: UUID


FULL_RANGE = (ScanRange(HIGHEST_PRIORITY, LOWEST_PRIORITY, FIRST_ID, LAST_ID),)


class LanePolicy(NamedTuple):
    """The rules of a queue, and the parts of a lane to read, as a claim statement needs them.

    held_groups   groups whose jobs need an admission (see `is_held` in fragments.sql)
    fair          whether jobs are claimed in the order of their admissions
    uses_slot     whether leases count against max_running, as in `Queue.uses_slot`
    scan_ranges   the parts of the lane that the claim reads, in this order
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
    """The new values of a job whose lease ends, and the old values that led to this decision.

    The statement that applies the decision skips the job if an old value has changed.

    previous_state    the state at the decision
    expected_expiry   lease_expires_at at the decision; only for an expiry or a timeout, which a
                      heartbeat makes invalid
    unreported_since  unreported_since at the decision; only for a reconcile, which a heartbeat
                      makes invalid
    attempt_record    the attempt record of this run; None if the run leaves no record
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
    """A lease to be ended. `last_attempt_record` is None if the job is running."""

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
