"""Runs maintenance.sql."""

from datetime import date, datetime
from uuid import UUID

from app.db.pool import Runs
from app.db.sql import statements

SQL = statements(__file__)


async def lead(on: Runs, chore: str, holder: UUID, seconds: float) -> bool:
    return await on.value(SQL.lead, chore, holder, seconds) is not None


async def step_down(on: Runs, holder: UUID) -> None:
    await on.rows(SQL.step_down, holder)


async def overdue(on: Runs, after: datetime, now: datetime) -> dict[str, datetime | None]:
    """By the name of the sweep. `after`: all leases that ended before have been seen to."""
    return {row["sweep"]: row["instant"] for row in await on.rows(SQL.overdue, after, now)}


async def make_partition(on: Runs, day: date, *, archived: bool) -> bool:
    made: bool = await on.value(SQL.make_partition, day, archived)
    return made


async def stray_days(on: Runs) -> list[tuple[bool, date]]:
    """Whether they go to an archive, and the day on which they may go."""
    return [(row["archive"], row["day"]) for row in await on.rows(SQL.stray_days)]


async def partitions(on: Runs) -> list[str]:
    return [row["name"] for row in await on.rows(SQL.partitions)]


async def retire_partition(on: Runs, name: str, *, archived: bool) -> bool:
    retired: bool = await on.value(SQL.retire_partition, name, archived)
    return retired
