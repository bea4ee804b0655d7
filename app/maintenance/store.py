"""Reads and writes what maintenance services need: leaders, clock lags, due times, partitions.

The functions run the statements of maintenance.sql.
"""

from datetime import date, datetime
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
