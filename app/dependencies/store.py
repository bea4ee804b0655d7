"""Runs dependencies.sql."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from asyncpg import Record

from app.db.pool import Runs
from app.db.sql import statements

SQL = statements(__file__)


class ToldRow(NamedTuple):
    """A child, its parent, and how that has ended."""

    parent: UUID
    child: UUID
    state: str

    @property
    def failed(self) -> bool:
        return self.state != "completed"


class ResultRow(NamedTuple):
    id: UUID
    state: str
    result: str | None


class ReleasedRow(NamedTuple):
    state: str
    job_type: str
    group_key: str | None
    run_at: datetime


async def await_parents(on: Runs, lane: int, ids: Sequence[UUID]) -> list[UUID]:
    return [row["id"] for row in await on.rows(SQL.await_parents, lane, ids)]


async def results_of(on: Runs, lane: int, ids: Sequence[UUID], kept_at: datetime) -> list[ResultRow]:
    return [ResultRow(*row) for row in await on.rows(SQL.results_of, lane, ids, kept_at)]


async def ended_parents(on: Runs, lane: int, ids: Sequence[UUID], kept_at: datetime) -> dict[UUID, str]:
    return {row["id"]: row["state"] for row in await on.rows(SQL.ended_parents, lane, ids, kept_at)}


async def add_dependents(on: Runs, lane: int, parents: Sequence[UUID], children: Sequence[UUID]) -> None:
    await on.rows(SQL.add_dependents, lane, parents, children)


async def ended_jobs(on: Runs, limit: int) -> list[Record]:
    return await on.rows(SQL.ended_jobs, limit)


async def children_of(on: Runs, lane: int, parents: Sequence[UUID], limit: int) -> list[ToldRow]:
    return [ToldRow(*row) for row in await on.rows(SQL.children_of, lane, parents, limit)]


async def release(
    on: Runs, lane: int, ids: Sequence[UUID], parents: Sequence[UUID], *, failed: bool, now: datetime, parks: Sequence[str] | None
) -> list[ReleasedRow]:
    return [ReleasedRow(*row) for row in await on.rows(SQL.release, lane, ids, parents, failed, now, parks)]


async def doomed(on: Runs, lane: int, ids: Sequence[UUID], parents: Sequence[UUID]) -> list[UUID]:
    return [row["id"] for row in await on.rows(SQL.doomed, lane, ids, parents)]


async def forget_dependents(on: Runs, lane: int, told: Sequence[ToldRow]) -> None:
    await on.rows(SQL.forget_dependents, lane, [row.parent for row in told], [row.child for row in told])


async def forget_ending(on: Runs, lane: int, parents: Sequence[UUID]) -> None:
    await on.rows(SQL.forget_ending, lane, parents)
