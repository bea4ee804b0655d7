"""Runs maintenance.sql."""

from datetime import date, datetime
from uuid import UUID

from app.db.pool import Executor
from app.db.queries import load_queries

SQL = load_queries(__file__)


async def lead(on: Executor, service_: str, holder: UUID, seconds: float) -> bool:
    return await on.value(SQL.lead, service_, holder, seconds) is not None


async def step_down(on: Executor, holder: UUID) -> None:
    await on.rows(SQL.step_down, holder)


async def overdue(on: Executor, after: datetime, now: datetime) -> dict[str, datetime | None]:
    """By the name of the sweep. `after`: all leases that ended before have been seen to."""
    return {row["sweep"]: row["instant"] for row in await on.rows(SQL.overdue, after, now)}


async def make_partition(on: Executor, day: date, *, archived: bool) -> bool:
    made: bool = await on.value(SQL.make_partition, day, archived)
    return made


async def stray_days(on: Executor) -> list[tuple[bool, date]]:
    """Whether they go to an archive, and the day on which they may go."""
    return [(row["archive"], row["day"]) for row in await on.rows(SQL.stray_days)]


async def partitions(on: Executor) -> list[str]:
    return [row["name"] for row in await on.rows(SQL.partitions)]


async def retire_partition(on: Executor, name: str, *, archived: bool) -> bool:
    retired: bool = await on.value(SQL.retire_partition, name, archived)
    return retired
