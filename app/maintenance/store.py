"""Runs maintenance.sql."""

from datetime import date, datetime
from uuid import UUID

from app.db.pool import Executor
from app.db.queries import load_queries

SQL = load_queries(__file__)


async def lead(db: Executor, service: str, holder: UUID, seconds: float) -> bool:
    return await db.value(SQL.lead.sql, service, holder, seconds) is not None


async def step_down(db: Executor, holder: UUID) -> None:
    await db.rows(SQL.step_down.sql, holder)


async def overdue(db: Executor, after: datetime, now: datetime) -> dict[str, datetime | None]:
    """Returns what is due first, by service. Leases that expired before `after` are skipped."""
    return {row["service"]: row["instant"] for row in await db.rows(SQL.overdue.sql, after, now)}


async def create_partition(db: Executor, day: date, *, archived: bool) -> bool:
    created: bool = await db.value(SQL.create_partition.sql, day, archived)
    return created


async def stray_days(db: Executor) -> list[tuple[bool, date]]:
    """Returns (archived, day on which the jobs may go) of misplaced finished jobs."""
    return [(row["archive"], row["day"]) for row in await db.rows(SQL.stray_days.sql)]


async def partitions(db: Executor) -> list[str]:
    return [row["name"] for row in await db.rows(SQL.partitions.sql)]


async def retire_partition(db: Executor, name: str, *, archived: bool) -> bool:
    retired: bool = await db.value(SQL.retire_partition.sql, name, archived)
    return retired
