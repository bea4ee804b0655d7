"""Reads and writes dependencies between jobs, and unblocks children of finished parents.

The functions run the statements of dependencies.sql.
"""

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
    """A child and one of its finished parents. `state` is the final state of the parent."""

    parent_id: UUID
    child_id: UUID
    state: str

    @property
    def failed(self) -> bool:
        return self.state != "completed"


class ParentSize(NamedTuple):
    """A parent that has finished or is dead, and the size of its result.

    `result_bytes` is None if the parent has no result.
    """

    id: UUID
    state: str
    result_bytes: int | None


async def mark_parents(db: Executor, lane: int, ids: Sequence[UUID]) -> list[UUID]:
    """Locks the jobs that are still live, sets their `has_dependents`, and returns their ids.

    The locks keep the parents from finishing before their child is stored.
    """
    return [row["id"] for row in await db.rows(*SQL.mark_parents(lane=lane, ids=ids))]


async def parent_sizes(db: Executor, lane: int, ids: Sequence[UUID], retention_now: datetime) -> list[ParentSize]:
    return [
        ParentSize(*row) for row in await db.rows(*SQL.parent_sizes(lane=lane, ids=ids, retention_now=retention_now))
    ]


async def results(db: Executor, lane: int, ids: Sequence[UUID], retention_now: datetime) -> dict[UUID, str | None]:
    rows = await db.rows(*SQL.results(lane=lane, ids=ids, retention_now=retention_now))
    return {row["id"]: row["result"] for row in rows}


async def parent_states(db: Executor, lane: int, ids: Sequence[UUID], retention_now: datetime) -> dict[UUID, str]:
    rows = await db.rows(*SQL.parent_states(lane=lane, ids=ids, retention_now=retention_now))
    return {row["id"]: row["state"] for row in rows}


async def add_dependents(db: Executor, lane: int, parents: Sequence[UUID], children: Sequence[UUID]) -> None:
    await db.rows(*SQL.add_dependents(lane=lane, parents=parents, children=children))


async def unresolved_parents(db: Executor, limit: int) -> list[Record]:
    return await db.rows(*SQL.unresolved_parents(limit=limit))


async def children_of(db: Executor, lane: int, parents: Sequence[UUID], limit: int) -> list[DependentRow]:
    rows = await db.rows(*SQL.children_of(lane=lane, parents=parents, limit=limit))
    return [DependentRow(*row) for row in rows]


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
    rows = await db.rows(
        *SQL.unblock(lane=lane, ids=ids, parents=parents, failed=failed, now=now, held_groups=held_groups)
    )
    return sorted(MovedJobRow(*row) for row in rows)


async def to_be_cancelled(db: Executor, lane: int, ids: Sequence[UUID], parents: Sequence[UUID]) -> list[UUID]:
    return [row["id"] for row in await db.rows(*SQL.to_be_cancelled(lane=lane, ids=ids, parents=parents))]


async def delete_dependents(db: Executor, lane: int, rows: Sequence[DependentRow]) -> None:
    parents, children = [row.parent_id for row in rows], [row.child_id for row in rows]
    await db.rows(*SQL.delete_dependents(lane=lane, parents=parents, children=children))


async def delete_finished_parents(db: Executor, lane: int, parents: Sequence[UUID]) -> None:
    await db.rows(*SQL.delete_finished_parents(lane=lane, parents=parents))
