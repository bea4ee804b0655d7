"""Runs leases.sql."""

from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate
from typing import NamedTuple
from uuid import UUID

from asyncpg import Record

from app.db.pool import Executor, to_columns
from app.db.queries import load_queries
from app.server.client import Client

SQL = load_queries(__file__)

ENVELOPE_BYTES = 1024  # of a claimed job without its user data: names, timestamps, token
MAX_ATTEMPT_RECORDS = 20  # because a job that retries for months must not grow forever


class ClaimedRow(NamedTuple):
    lane: int
    id: UUID
    job_type: str
    payload: str
    attempt: int
    max_attempts: int
    deliveries: int
    lease_token: UUID
    began: float  # when the lease began, in seconds since 1970
    lasts: float  # length of the lease in seconds, unless a heartbeat extends it
    waited: float | None  # seconds since run_at; None after a crash and in a replayed claim
    priority: int
    checkpoint: str | None
    progress: str | None
    group_key: str | None
    tags: str | None
    metadata: str | None
    traceparent: str | None
    tracestate: str | None
    deadline_at: datetime | None
    depends_on: list[UUID] | None
    turn: int | None
    share: int  # number of the poll slice that gets this job, counted from 1


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
    missing_since: datetime | None
    worker_id: str | None
    retry: str | None


class SettledRow(NamedTuple):
    """A job whose lease has ended.

    `ran`: run time in seconds, if the job was completed. `turn`: the admission of the ended lease.
    """

    id: UUID
    state: str
    attempt: int
    run_at: datetime | None
    ran: float | None
    job_type: str
    group_key: str | None
    awaited: bool
    turn: int | None


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
    held_by: str | None = None
    poll_slices: Sequence[PollSlice] = ()
    client: Client | None = None

    @property
    def is_batchable(self) -> bool:
        """Whether the claim may share a statement with other claims."""
        return self.job_types is None and self.held_by is None and self.allow_one_oversized


class ScanRange(NamedTuple):
    """A part of a lane.

    The priorities from `highest` down to `lowest`, and in each of them the ids greater than `after`
    and up to `until`.
    """

    highest: int
    lowest: int
    after: UUID
    until: UUID


HIGHEST_PRIORITY, LOWEST_PRIORITY = 32767, -32768
NIL, LAST = UUID(int=0), UUID(int=(1 << 128) - 1)
FULL_RANGE = (ScanRange(HIGHEST_PRIORITY, LOWEST_PRIORITY, NIL, LAST),)


class LanePolicy(NamedTuple):
    """How jobs of a lane are claimed.

    held_groups   groups whose jobs need an admission (`parks` in jobs.sql)
    fair          whether admissions are the order
    uses_slot     whether leases count against max_running
    scan_ranges   where to read, in this order
    """

    held_groups: Sequence[str] | None = None
    fair: bool = False
    uses_slot: bool | None = None
    scan_ranges: Sequence[ScanRange] = FULL_RANGE


async def count_leases_of_key(db: Executor, caller: str) -> int:
    count: int = await db.value(SQL.count_leases_of_key, caller)
    return count


async def claim(
    db: Executor, lane: int, limit: int, params: ClaimParams, policy: LanePolicy, now: datetime
) -> list[ClaimedRow]:
    """Claims jobs and returns them in their order.

    Poll slices, if there are any, replace `limit`. The first slice gets the first jobs.
    """
    slices = params.poll_slices or (PollSlice(limit, params.worker_id, params.lease_seconds),)
    limits, worker_ids, lease_seconds = zip(*slices, strict=True)
    *ends, total = accumulate(limits)
    rows = await db.rows(
        SQL.claim_in_turn if policy.fair else SQL.claim,
        lane,
        total,
        worker_ids,
        now,
        params.secret,
        lease_seconds,
        params.default_lease_seconds,
        params.max_bytes,
        params.job_types,
        now.timestamp(),
        ENVELOPE_BYTES,
        params.allow_one_oversized,
        policy.held_groups,
        policy.uses_slot,
        params.held_by,
        *to_columns(policy.scan_ranges),
        [end + 1 for end in ends],
    )
    return sorted(map(ClaimedRow._make, rows), key=_by_admission if policy.fair else _by_age)


def _by_age(row: ClaimedRow) -> tuple[int, UUID]:
    return -row.priority, row.id


def _by_admission(row: ClaimedRow) -> tuple[int, int, UUID]:
    return -row.priority, row.turn or 0, row.id


async def first_ready(db: Executor, lane: int, priorities: Sequence[int]) -> list[tuple[int, UUID]]:
    return [(row["priority"], row["id"]) for row in await db.rows(SQL.first_ready, lane, priorities)]


async def leases_with_secret(db: Executor, lane: int, ids: Sequence[UUID], secret: str) -> list[ClaimedRow]:
    return [*map(ClaimedRow._make, await db.rows(SQL.leases_with_secret, lane, ids, secret))]


async def heartbeat(
    db: Executor, lane: int, heartbeats: Sequence[tuple[object, ...]], now: datetime, default_lease_seconds: int
) -> list[HeartbeatRow]:
    """Heartbeats are (id, token, lease_seconds, progress, checkpoint)."""
    ids, tokens, seconds, progress, checkpoints = to_columns(heartbeats)
    rows = await db.rows(
        SQL.heartbeat, lane, ids, tokens, now.timestamp(), default_lease_seconds, seconds, progress, checkpoints
    )
    return [*map(HeartbeatRow._make, rows)]


async def complete(
    db: Executor,
    lane: int,
    items: Sequence[tuple[UUID, UUID, str | None]],
    now: datetime,
    keep_until: datetime,
    archive: bool,
) -> list[SettledRow]:
    """Items are (id, token, result)."""
    return [*map(SettledRow._make, await db.rows(SQL.complete, lane, *to_columns(items), now, keep_until, archive))]


async def get_leases(db: Executor, lane: int, ids: Sequence[UUID], tokens: Sequence[UUID]) -> list[LeaseRow]:
    return [*map(LeaseRow._make, await db.rows(SQL.get_leases, lane, ids, tokens))]


async def requeue(
    db: Executor,
    lane: int,
    rows: Sequence[tuple[object, ...]],
    *,
    strict: bool,
    held_groups: Sequence[str] | None,
    cooling_groups: Sequence[str] | None,
) -> list[SettledRow]:
    return [
        *map(
            SettledRow._make,
            await db.rows(
                SQL.requeue, lane, *to_columns(rows), MAX_ATTEMPT_RECORDS, strict, held_groups, cooling_groups
            ),
        )
    ]


async def move_to_dead_letters(
    db: Executor, lane: int, rows: Sequence[tuple[object, ...]], now: datetime
) -> list[SettledRow]:
    return [
        *map(
            SettledRow._make,
            await db.rows(SQL.move_to_dead_letters, lane, *to_columns(rows), MAX_ATTEMPT_RECORDS, now),
        )
    ]


async def finish_cancelled(
    db: Executor, lane: int, rows: Sequence[tuple[object, ...]], now: datetime, keep_until: datetime, archive: bool
) -> list[SettledRow]:
    return [
        *map(
            SettledRow._make,
            await db.rows(SQL.finish_cancelled, lane, *to_columns(rows), MAX_ATTEMPT_RECORDS, now, keep_until, archive),
        )
    ]


async def settlement_records(
    db: Executor, lane: int, ids: Sequence[UUID], kept_at: datetime
) -> dict[UUID, SettlementRecord]:
    records = [*map(SettlementRecord._make, await db.rows(SQL.settlement_records, lane, ids, kept_at))]
    if any(record.settled_as for record in records):
        await wait_for_replication(db)
    return {record.id: record for record in records}


async def wait_for_replication(db: Executor) -> None:
    """Returns when every earlier commit is as durable as the server is configured to make it."""
    await db.rows(SQL.wait_for_replication)


async def expired_leases(db: Executor, after: datetime, until: datetime, limit: int) -> list[Record]:
    return await db.rows(SQL.expired_leases, after, until, limit)


async def leases_of_worker(db: Executor, worker_id: str, claimed_before: datetime) -> list[Record]:
    return await db.rows(SQL.leases_of_worker, worker_id, claimed_before)


async def mark_unreported(db: Executor, lane: int, ids: Sequence[UUID], tokens: Sequence[UUID], now: datetime) -> None:
    await db.rows(SQL.mark_unreported, lane, ids, tokens, now)


async def ready_lanes(db: Executor, lanes: Sequence[int]) -> list[int]:
    return [row["lane"] for row in await db.rows(SQL.ready_lanes, lanes)]


async def live_tokens(db: Executor, after: tuple[int, UUID], limit: int) -> list[Record]:
    return await db.rows(SQL.live_tokens, *after, limit)
