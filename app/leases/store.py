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

ENVELOPE_BYTES = 1024  # of a claimed job without its user data: names, instants, token
KEPT_ATTEMPTS = 20  # a job that retries for months must not grow for ever


class ClaimedRow(NamedTuple):
    lane: int
    id: UUID
    job_type: str
    payload: str
    attempt: int
    max_attempts: int
    deliveries: int
    lease_token: UUID
    began: float  # the instant, as seconds since 1970
    lasts: float  # seconds, unless a heartbeat comes
    waited: float | None  # seconds; not after a crash, and not told again to who repeats his claim
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
    share: int  # whose it is, of the polls that shared the statement, counted from 1


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
    """`ran`: for how many seconds, if it was completed. `turn`: the one that the lease had."""

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
    """What one of many polls that share a statement asks for."""

    most: int
    worker_id: str | None
    lease_seconds: int | None


class ClaimParams(NamedTuple):
    """What a claim asks of each lane, and for whom. With `shares` it is many claims that ask alike."""

    worker_id: str | None
    secret: str
    lease_seconds: int | None
    default_lease_seconds: int
    max_bytes: int
    at_least_one: bool
    job_types: Sequence[str] | None
    held_by: str | None = None
    shares: Sequence[PollSlice] = ()
    client: Client | None = None

    @property
    def accepts_any_type(self) -> bool:
        return self.job_types is None and self.held_by is None and self.at_least_one


class ScanRange(NamedTuple):
    """A part of a lane: the priorities from `highest` down to `lowest`, and of each the ids beyond `after` up to `upto`."""

    highest: int
    lowest: int
    after: UUID
    upto: UUID


HIGHEST, LOWEST = 32767, -32768
NIL, LAST = UUID(int=0), UUID(int=(1 << 128) - 1)
WHOLE_LANE = (ScanRange(HIGHEST, LOWEST, NIL, LAST),)


class LanePolicy(NamedTuple):
    """What a lane asks of a claim: who waits for a turn (`parks` in jobs.sql), whether turns are the order, whether leases are counted,
    and where to look, in this order."""

    held_groups: Sequence[str] | None = None
    in_turn: bool = False
    counted: bool | None = None
    scan_ranges: Sequence[ScanRange] = WHOLE_LANE


async def count_leases_of_key(on: Executor, caller: str) -> int:
    held: int = await on.value(SQL.count_leases_of_key, caller)
    return held


async def claim(
    on: Executor, lane: int, limit: int, params: ClaimParams, rules: LanePolicy, now: datetime
) -> list[ClaimedRow]:
    """In their order. With shares these say how many, not `limit`, and the first has the first jobs."""
    shares = params.shares or (PollSlice(limit, params.worker_id, params.lease_seconds),)
    most, worker_ids, lease_seconds = zip(*shares, strict=True)
    *ends, total = accumulate(most)
    rows = await on.rows(
        SQL.claim_in_turn if rules.in_turn else SQL.claim,
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
        params.at_least_one,
        rules.held_groups,
        rules.counted,
        params.held_by,
        *to_columns(rules.scan_ranges),
        [end + 1 for end in ends],
    )
    return sorted(map(ClaimedRow._make, rows), key=_in_turn if rules.in_turn else _by_age)


def _by_age(row: ClaimedRow) -> tuple[int, UUID]:
    return -row.priority, row.id


def _in_turn(row: ClaimedRow) -> tuple[int, int, UUID]:
    return -row.priority, row.turn or 0, row.id


async def first_ready(on: Executor, lane: int, priorities: Sequence[int]) -> list[tuple[int, UUID]]:
    return [(row["priority"], row["id"]) for row in await on.rows(SQL.first_ready, lane, priorities)]


async def leases_with_secret(on: Executor, lane: int, ids: Sequence[UUID], secret: str) -> list[ClaimedRow]:
    return [*map(ClaimedRow._make, await on.rows(SQL.leases_with_secret, lane, ids, secret))]


async def heartbeat(
    on: Executor, lane: int, beats: Sequence[tuple[object, ...]], now: datetime, default_lease_seconds: int
) -> list[HeartbeatRow]:
    """Beats are (id, token, lease_seconds, progress, checkpoint)."""
    ids, tokens, seconds, progress, checkpoints = to_columns(beats)
    rows = await on.rows(
        SQL.heartbeat, lane, ids, tokens, now.timestamp(), default_lease_seconds, seconds, progress, checkpoints
    )
    return [*map(HeartbeatRow._make, rows)]


async def complete(
    on: Executor,
    lane: int,
    items: Sequence[tuple[UUID, UUID, str | None]],
    now: datetime,
    keep_until: datetime,
    archive: bool,
) -> list[SettledRow]:
    """Items are (id, token, result)."""
    return [*map(SettledRow._make, await on.rows(SQL.complete, lane, *to_columns(items), now, keep_until, archive))]


async def get_leases(on: Executor, lane: int, ids: Sequence[UUID], tokens: Sequence[UUID]) -> list[LeaseRow]:
    return [*map(LeaseRow._make, await on.rows(SQL.get_leases, lane, ids, tokens))]


async def requeue(
    on: Executor,
    lane: int,
    rows: Sequence[tuple[object, ...]],
    *,
    strict: bool,
    held_groups: Sequence[str] | None,
    resting: Sequence[str] | None,
) -> list[SettledRow]:
    return [
        *map(
            SettledRow._make,
            await on.rows(SQL.requeue, lane, *to_columns(rows), KEPT_ATTEMPTS, strict, held_groups, resting),
        )
    ]


async def move_to_dead_letters(
    on: Executor, lane: int, rows: Sequence[tuple[object, ...]], now: datetime
) -> list[SettledRow]:
    return [
        *map(SettledRow._make, await on.rows(SQL.move_to_dead_letters, lane, *to_columns(rows), KEPT_ATTEMPTS, now))
    ]


async def finish_cancelled(
    on: Executor, lane: int, rows: Sequence[tuple[object, ...]], now: datetime, keep_until: datetime, archive: bool
) -> list[SettledRow]:
    return [
        *map(
            SettledRow._make,
            await on.rows(SQL.finish_cancelled, lane, *to_columns(rows), KEPT_ATTEMPTS, now, keep_until, archive),
        )
    ]


async def settlement_records(
    on: Executor, lane: int, ids: Sequence[UUID], kept_at: datetime
) -> dict[UUID, SettlementRecord]:
    found = [*map(SettlementRecord._make, await on.rows(SQL.settlement_records, lane, ids, kept_at))]
    if any(trace.settled_as for trace in found):
        await wait_for_replication(on)
    return {trace.id: trace for trace in found}


async def wait_for_replication(on: Executor) -> None:
    """Returns when everything that was committed before is as safe as a commit can be here."""
    await on.rows(SQL.wait_for_replication)


async def expired_leases(on: Executor, after: datetime, until: datetime, limit: int) -> list[Record]:
    return await on.rows(SQL.expired_leases, after, until, limit)


async def leases_of_worker(on: Executor, worker_id: str, claimed_before: datetime) -> list[Record]:
    return await on.rows(SQL.leases_of_worker, worker_id, claimed_before)


async def mark_unreported(on: Executor, lane: int, ids: Sequence[UUID], tokens: Sequence[UUID], now: datetime) -> None:
    await on.rows(SQL.mark_unreported, lane, ids, tokens, now)


async def ready_lanes(on: Executor, lanes: Sequence[int]) -> list[int]:
    return [row["lane"] for row in await on.rows(SQL.ready_lanes, lanes)]


async def live_tokens(on: Executor, after: tuple[int, UUID], limit: int) -> list[Record]:
    return await on.rows(SQL.live_tokens, *after, limit)
