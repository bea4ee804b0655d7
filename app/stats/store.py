"""Runs stats.sql."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from app.db.pool import Executor
from app.db.queries import load_queries

SQL = load_queries(__file__)


class CountRow(NamedTuple):
    lane: int
    scheduled: int
    blocked: int
    ready: int
    running: int
    completed: int
    cancelled: int
    dead: int


class RateRow(NamedTuple):
    """Events of the last 1, 5 and 60 minutes; NULL if there was none at all."""

    enqueued_1: int | None
    completed_1: int | None
    failed_1: int | None
    dead_1: int | None
    enqueued_5: int | None
    completed_5: int | None
    failed_5: int | None
    dead_5: int | None
    enqueued_60: int | None
    completed_60: int | None
    failed_60: int | None
    dead_60: int | None


class DurationRow(NamedTuple):
    kind: str
    bucket: int
    total: int


async def unaggregated_lanes(db: Executor) -> list[int]:
    return [row["lane"] for row in await db.rows(SQL.unaggregated_lanes.sql)]


async def aggregate(db: Executor, lane: int) -> None:
    await db.rows(SQL.aggregate.sql, lane)


async def add_durations(db: Executor, counts: Sequence[tuple[int, str, int, int]], now: datetime) -> None:
    """Adds counts, given as (lane, kind, bucket, count)."""
    await db.rows(SQL.add_durations.sql, *[list(column) for column in zip(*counts, strict=True)], now)


async def counts(db: Executor, lanes: Sequence[int]) -> list[CountRow]:
    return [CountRow(*row) for row in await db.rows(SQL.counts.sql, lanes)]


async def rates(db: Executor, lanes: Sequence[int], now: datetime) -> RateRow:
    row = await db.row(SQL.rates.sql, lanes, *[now - timedelta(minutes=minutes) for minutes in (1, 5, 60)])
    assert row is not None, "an aggregate without GROUP BY has one row"
    return RateRow(*row)


async def durations(db: Executor, lanes: Sequence[int], since: datetime) -> list[DurationRow]:
    return [DurationRow(*row) for row in await db.rows(SQL.durations.sql, lanes, since)]


async def oldest_ready(db: Executor, lanes: Sequence[int]) -> datetime | None:
    oldest: datetime | None = await db.value(SQL.oldest_ready.sql, lanes)
    return oldest


async def oldest_pending(db: Executor, lanes: Sequence[int]) -> datetime | None:
    oldest: datetime | None = await db.value(SQL.oldest_pending.sql, lanes)
    return oldest


async def workers_seen(db: Executor, since: datetime) -> int:
    seen: int = await db.value(SQL.workers_seen.sql, since)
    return seen


async def delete_old_stats(db: Executor, before: datetime) -> None:
    await db.rows(SQL.delete_rates.sql, before)
    await db.rows(SQL.delete_durations.sql, before)
