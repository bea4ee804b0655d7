"""Runs purging.sql."""

from collections.abc import Sequence
from uuid import UUID

from app.db.pool import Executor
from app.db.queries import load_queries

SQL = load_queries(__file__)


async def count_purgeable(db: Executor, lanes: range, states: Sequence[str]) -> int:
    count: int = await db.value(SQL.count_purgeable, lanes.start, lanes.stop, states)
    return count


async def purgeable_jobs(
    db: Executor, after: tuple[int, UUID], end: int, before: UUID, states: Sequence[str], limit: int
) -> list[UUID]:
    return [row["id"] for row in await db.rows(SQL.purgeable_jobs, *after, end, before, states, limit)]


async def purge_waiting(db: Executor, lane: int, ids: Sequence[UUID], states: Sequence[str]) -> int:
    return len(await db.rows(SQL.purge_waiting, lane, ids, states))
