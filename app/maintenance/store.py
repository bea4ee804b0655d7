"""Reads and writes what maintenance services need: leaders, clock lags, due times, partitions.

The functions run the statements of maintenance.sql.
"""

from collections.abc import Sequence
from datetime import date, datetime
from typing import NamedTuple
from uuid import UUID

from app.db.pool import Executor
from app.db.queries import load_queries

SQL = load_queries(__file__)


async def lead(db: Executor, service: str, holder: UUID, *, now: datetime, until: datetime) -> bool:
    return await db.value(*SQL.lead(service=service, holder=holder, now=now, until=until)) is not None


async def step_down(db: Executor, holder: UUID) -> None:
    await db.rows(*SQL.step_down(holder=holder))


async def write_clock_lag(
    db: Executor, clock: str, broker: UUID, *, seconds: float, starts_at: datetime, ends_at: datetime
) -> None:
    await db.rows(
        *SQL.write_clock_lag(clock=clock, broker=broker, seconds=seconds, starts_at=starts_at, ends_at=ends_at)
    )


async def delete_clock_lag(db: Executor, clock: str, broker: UUID) -> None:
    await db.rows(*SQL.delete_clock_lag(clock=clock, broker=broker))


async def delete_ended_clock_lags(db: Executor, before: datetime) -> None:
    await db.rows(*SQL.delete_ended_clock_lags(before=before))


async def due_times(db: Executor, after: datetime, now: datetime) -> dict[str, datetime | None]:
    """Returns, for each service that has work, the time at which it is due. None means now.

    Omits services without work. Ignores leases that expired at or before `after`.
    """
    return {row["service"]: row["instant"] for row in await db.rows(*SQL.due_times(after=after, now=now))}


class CheckedPage(NamedTuple):
    """What `add_coverage` has read and added. `last_lane` and `last_id` are None if there was no job."""

    jobs: int
    spans: int
    checks: int
    last_lane: int | None
    last_id: UUID | None

    @property
    def last_job(self) -> tuple[int, UUID] | None:
        return None if self.last_lane is None or self.last_id is None else (self.last_lane, self.last_id)


class SpanRow(NamedTuple):
    """A ready span. `is_empty`: it has no ready job."""

    lane: int
    priority: int
    first_id: UUID
    is_empty: bool

    @property
    def key(self) -> tuple[int, int, UUID]:
        return self.lane, self.priority, self.first_id


async def add_coverage(db: Executor, after: tuple[int, UUID], limit: int) -> CheckedPage:
    after_lane, after_id = after
    row = await db.row(*SQL.add_coverage(after_lane=after_lane, after_id=after_id, limit=limit))
    assert row is not None
    return CheckedPage(*row)


async def spans_after(db: Executor, after: tuple[int, int, UUID], limit: int) -> list[SpanRow]:
    lane, priority, first_id = after
    rows = await db.rows(*SQL.spans_after(lane=lane, priority=priority, first_id=first_id, limit=limit))
    return [SpanRow(*row) for row in rows]


async def delete_empty_spans(db: Executor, lane: int, spans: Sequence[SpanRow]) -> int:
    """Deletes those of the spans that no claim has locked and that have no ready job. Returns how many.

    `db` is a transaction, which keeps the locks from the first statement to the second.
    """
    keys = {
        "lane": lane,
        "priorities": sorted({span.priority for span in spans}),
        "first_ids": [span.first_id for span in spans],
    }
    await db.rows(*SQL.lock_spans(**keys))
    return len(await db.rows(*SQL.delete_empty_spans(**keys)))


async def create_partition(db: Executor, day: date, *, archived: bool) -> bool:
    created: bool = await db.value(*SQL.create_partition(day=day, archive=archived))
    return created


async def misplaced_days(db: Executor) -> list[tuple[bool, date]]:
    """Returns the partitions that are missing for jobs in the default partition.

    Each partition is a pair: whether its jobs are archived, and its day.
    """
    return [(row["archive"], row["day"]) for row in await db.rows(*SQL.misplaced_days())]


async def partitions(db: Executor) -> list[str]:
    return [row["name"] for row in await db.rows(*SQL.partitions())]


async def retire_partition(db: Executor, name: str, *, archived: bool) -> bool:
    retired: bool = await db.value(*SQL.retire_partition(name=name, archive=archived))
    return retired
