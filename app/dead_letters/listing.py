"""Lists, counts and groups of dead letters: queries that are assembled from the filters."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from asyncpg import Record

from app.db.lanes import LANES_PER_QUEUE
from app.db.pool import Executor
from app.db.sqlalchemy_queries import compile_query
from app.db.tables import dead_letters as letters
from app.dead_letters.schemas import DeadLetterFilter, GroupField
from app.http.schema_types import UNSET
from app.jobs.listing import job_columns, within_bytes
from app.jobs.rows import JobRow

MAX_GROUPS = 1000
_QUEUE_ID = letters.c.lane // LANES_PER_QUEUE
_GROUPED_BY = {
    GroupField.QUEUE: _QUEUE_ID,
    GroupField.JOB_TYPE: letters.c.job_type,
    GroupField.FINGERPRINT: letters.c.fingerprint,
}


class DeadLetterRow(NamedTuple):
    job: JobRow
    dead_at: datetime
    fingerprint: str


class DeadLetterPage(NamedTuple):
    """The first dead letters of a page, up to the byte limit, and the `total` of the page without
    it.
    """

    letters: list[DeadLetterRow]
    total: int


async def list_dead_letters(
    db: Executor,
    filters: DeadLetterFilter,
    queues: Sequence[int] | None,
    *,
    after: tuple[datetime, UUID] | None,
    limit: int,
    max_bytes: int,
    payload: bool,
) -> DeadLetterPage:
    columns = job_columns(letters, payload=payload)
    query = sa.select(*columns, letters.c.dead_at, letters.c.fingerprint).where(*_conditions(filters, queues))
    if after is not None:
        query = query.where(sa.tuple_(letters.c.dead_at, letters.c.id) < sa.tuple_(after[0], after[1]))
    page = query.order_by(letters.c.dead_at.desc(), letters.c.id.desc()).limit(limit)
    rows = await db.rows(
        *compile_query(within_bytes(page, max_bytes, lambda rows: [rows.c.dead_at.desc(), rows.c.id.desc()]))
    )
    return DeadLetterPage([_letter(row[:-1]) for row in rows], rows[0]["total"] if rows else 0)


async def get_dead_letter(db: Executor, lane: int, job_id: UUID) -> list[DeadLetterRow]:
    query = sa.select(*job_columns(letters), letters.c.dead_at, letters.c.fingerprint).where(
        letters.c.lane == lane, letters.c.id == job_id
    )
    return [_letter(tuple(row)) for row in await db.rows(*compile_query(query))]


async def matching_ids(db: Executor, filters: DeadLetterFilter, queues: Sequence[int] | None, limit: int) -> list[UUID]:
    """The ids of matching dead letters, oldest first: the job that has waited longest is replayed
    first.
    """
    query = (
        sa.select(letters.c.id)
        .where(*_conditions(filters, queues))
        .order_by(letters.c.dead_at, letters.c.id)
        .limit(limit)
    )
    return [row["id"] for row in await db.rows(*compile_query(query))]


async def count(db: Executor, filters: DeadLetterFilter, queues: Sequence[int] | None) -> int:
    matched: int = await db.value(
        *compile_query(sa.select(sa.func.count()).select_from(letters).where(*_conditions(filters, queues)))
    )
    return matched


async def group(
    db: Executor, by: Sequence[GroupField], filters: DeadLetterFilter, queues: Sequence[int] | None
) -> list[Record]:
    """One row per group: the fields grouped by, then count, first_at, last_at and the id of a
    sample.
    """
    keys = [_GROUPED_BY[field].label(field.value) for field in by]
    query = (
        sa.select(
            *keys,
            sa.func.count().label("count"),
            sa.func.min(letters.c.dead_at).label("first_at"),
            sa.func.max(letters.c.dead_at).label("last_at"),
            sa.func.max(sa.cast(letters.c.id, sa.Text)).label("sample"),
        )
        .where(*_conditions(filters, queues))
        .group_by(*[_GROUPED_BY[field] for field in by])
        .order_by(sa.desc("count"))
        .limit(MAX_GROUPS)
    )
    return await db.rows(*compile_query(query))


def _letter(row: Sequence[Any]) -> DeadLetterRow:
    *job, dead_at, fingerprint = row
    return DeadLetterRow(JobRow(*job), dead_at, fingerprint)


def _conditions(filters: DeadLetterFilter, queues: Sequence[int] | None) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    if queues is not None and len(queues) == 1:
        conditions.append(letters.c.lane.between(queues[0] * LANES_PER_QUEUE, (queues[0] + 1) * LANES_PER_QUEUE - 1))
    elif queues is not None:
        conditions.append(sa.any_(sa.bindparam("queues", list(queues), sa.ARRAY(sa.Integer))) == _QUEUE_ID)
    for name in ("job_type", "reason", "error_type", "fingerprint"):
        value = getattr(filters, name)
        if value is not UNSET:
            conditions.append(letters.c[name] == value)
    if filters.dead_after is not UNSET:
        conditions.append(letters.c.dead_at >= filters.dead_after)
    if filters.dead_before is not UNSET:
        conditions.append(letters.c.dead_at < filters.dead_before)
    return conditions
