"""Reads, aggregates and deletes statistics: the functions run the statements of stats.sql."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from app.db.pool import Executor
from app.db.queries import load_queries

SQL = load_queries(__file__)


class CountRow(NamedTuple):
    scheduled: int
    blocked: int
    ready: int
    running: int
    completed: int
    cancelled: int
    dead: int


class RateRow(NamedTuple):
    """Numbers of events within the last 1, 5 and 60 minutes. None stands for 0."""

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


class DurationCount(NamedTuple):
    """How many durations fall into one bucket of the histogram of a lane."""

    lane: int
    kind: str
    bucket: int
    total: int


class DurationRow(NamedTuple):
    kind: str
    bucket: int
    total: int


async def unaggregated_lanes(db: Executor) -> list[int]:
    return [row["lane"] for row in await db.rows(*SQL.unaggregated_lanes())]


async def aggregate(db: Executor, lane: int) -> None:
    await db.rows(*SQL.aggregate(lane=lane))


async def add_durations(db: Executor, durations: Sequence[DurationCount], now: datetime) -> None:
    await db.rows(
        *SQL.add_durations(
            lanes=[duration.lane for duration in durations],
            kinds=[duration.kind for duration in durations],
            buckets=[duration.bucket for duration in durations],
            counts=[duration.total for duration in durations],
            now=now,
        )
    )


async def counts(db: Executor, lanes: Sequence[int]) -> CountRow:
    row = await db.row(*SQL.counts(lanes=lanes))
    assert row is not None, "an aggregate without GROUP BY has one row"
    return CountRow(*row)


async def rates(db: Executor, lanes: Sequence[int], now: datetime) -> RateRow:
    since_1, since_5, since_60 = (now - timedelta(minutes=minutes) for minutes in (1, 5, 60))
    row = await db.row(*SQL.rates(lanes=lanes, since_1=since_1, since_5=since_5, since_60=since_60))
    assert row is not None, "an aggregate without GROUP BY has one row"
    return RateRow(*row)


async def durations(db: Executor, lanes: Sequence[int], since: datetime) -> list[DurationRow]:
    return [DurationRow(*row) for row in await db.rows(*SQL.durations(lanes=lanes, since=since))]


async def oldest_ready(db: Executor, lanes: Sequence[int]) -> datetime | None:
    oldest: datetime | None = await db.value(*SQL.oldest_ready(lanes=lanes))
    return oldest


async def oldest_pending(db: Executor, lanes: Sequence[int]) -> datetime | None:
    oldest: datetime | None = await db.value(*SQL.oldest_pending(lanes=lanes))
    return oldest


async def workers_seen(db: Executor, since: datetime) -> int:
    seen: int = await db.value(*SQL.workers_seen(since=since))
    return seen


async def delete_old_stats(db: Executor, before: datetime) -> None:
    await db.rows(*SQL.delete_rates(before=before))
    await db.rows(*SQL.delete_durations(before=before))
