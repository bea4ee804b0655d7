"""Runs dependencies.sql."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from asyncpg import Record

from app.db.pool import Executor
from app.db.queries import load_queries
from app.events import MovedJobRow

SQL = load_queries(__file__)


class DependentRow(NamedTuple):
    """A child, and a finished parent with its state."""

    parent_id: UUID
    child_id: UUID
    state: str

    @property
    def failed(self) -> bool:
        return self.state != "completed"


class ParentResultRow(NamedTuple):
    id: UUID
    state: str
    result: str | None


async def mark_parents(db: Executor, lane: int, ids: Sequence[UUID]) -> list[UUID]:
    return [row["id"] for row in await db.rows(SQL.mark_parents.sql, lane, ids)]


async def parent_results(db: Executor, lane: int, ids: Sequence[UUID], kept_at: datetime) -> list[ParentResultRow]:
    return [ParentResultRow(*row) for row in await db.rows(SQL.parent_results.sql, lane, ids, kept_at)]


async def parent_states(db: Executor, lane: int, ids: Sequence[UUID], kept_at: datetime) -> dict[UUID, str]:
    return {row["id"]: row["state"] for row in await db.rows(SQL.parent_states.sql, lane, ids, kept_at)}


async def add_dependents(db: Executor, lane: int, parents: Sequence[UUID], children: Sequence[UUID]) -> None:
    await db.rows(SQL.add_dependents.sql, lane, parents, children)


async def unresolved_parents(db: Executor, limit: int) -> list[Record]:
    return await db.rows(SQL.unresolved_parents.sql, limit)


async def children_of(db: Executor, lane: int, parents: Sequence[UUID], limit: int) -> list[DependentRow]:
    return [DependentRow(*row) for row in await db.rows(SQL.children_of.sql, lane, parents, limit)]


async def unblock(
    db: Executor,
    lane: int,
    ids: Sequence[UUID],
    parents: Sequence[UUID],
    *,
    failed: bool,
    now: datetime,
    held_groups: Sequence[str] | None,
) -> list[MovedJobRow]:
    rows = await db.rows(SQL.unblock.sql, lane, ids, parents, failed, now, held_groups)
    return sorted(MovedJobRow(*row) for row in rows)


async def to_be_cancelled(db: Executor, lane: int, ids: Sequence[UUID], parents: Sequence[UUID]) -> list[UUID]:
    return [row["id"] for row in await db.rows(SQL.to_be_cancelled.sql, lane, ids, parents)]


async def delete_dependents(db: Executor, lane: int, rows: Sequence[DependentRow]) -> None:
    await db.rows(SQL.delete_dependents.sql, lane, [row.parent_id for row in rows], [row.child_id for row in rows])


async def delete_finished_parents(db: Executor, lane: int, parents: Sequence[UUID]) -> None:
    await db.rows(SQL.delete_finished_parents.sql, lane, parents)
