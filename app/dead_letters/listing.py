"""Lists, counts and groups of dead letters: queries that are assembled from the filters."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias
from uuid import UUID

import sqlalchemy as sa
from asyncpg import Record

from app.db.lanes import LANES_PER_QUEUE
from app.db.pool import Executor
from app.db.sqlalchemy_queries import compiled_once, parameter
from app.db.tables import dead_letters as letters
from app.dead_letters.schemas import DeadLetterFilter, GroupField
from app.http.schema_types import UNSET
from app.jobs.listing import Query, ids_of, job_columns, within_bytes
from app.jobs.rows import JobRow
from app.slices import map_in_slices

QueueFilter: TypeAlias = Literal["all", "one", "several"]
_LIMIT = parameter("limit", sa.Integer)
_QUEUE_ID = letters.c.lane // LANES_PER_QUEUE
_GROUPED_BY = {
    GroupField.QUEUE: _QUEUE_ID,
    GroupField.JOB_TYPE: letters.c.job_type,
    GroupField.FINGERPRINT: letters.c.fingerprint,
}


_GROUP_SIZE = sa.func.count()
# As text, because Postgres has no maximum of uuids before version 18.
_SAMPLE = sa.func.max(sa.cast(letters.c.id, sa.Text).collate("C"))


class GroupPosition(NamedTuple):
    """The end of a page of groups. Later pages count only jobs that died until `latest`.

    So the groups that are still to come cannot grow past the end of this page: no group is left
    out. A group that shrinks in the meantime may be listed again, with its new count.
    """

    size: int
    sample: str
    latest: datetime


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
    query = await _page_query(*_shape(filters, queues), after is not None, payload)
    values = {**_values(filters, queues), "limit": limit, "max_bytes": max_bytes}
    if after is not None:
        values["after_at"], values["after_id"] = after
    rows = await db.rows(*query.with_values(values))
    letters = await map_in_slices(lambda row: _letter(row[:-1]), rows)
    return DeadLetterPage(letters, rows[0]["total"] if rows else 0)


async def get_dead_letter(db: Executor, lane: int, job_id: UUID) -> list[DeadLetterRow]:
    query = await _letter_query()
    return [_letter(tuple(row)) for row in await db.rows(*query.with_values({"lane": lane, "id": job_id}))]


async def matching_ids(db: Executor, filters: DeadLetterFilter, queues: Sequence[int] | None, limit: int) -> list[UUID]:
    """The ids of matching dead letters, oldest first: the job that has waited longest is replayed
    first.
    """
    return await ids_of(db, await _ids_query(*_shape(filters, queues)), {**_values(filters, queues), "limit": limit})


async def count(db: Executor, filters: DeadLetterFilter, queues: Sequence[int] | None) -> int:
    query = await _count_query(*_shape(filters, queues))
    matched: int = await db.value(*query.with_values(_values(filters, queues)))
    return matched


async def group(
    db: Executor,
    by: Sequence[GroupField],
    filters: DeadLetterFilter,
    queues: Sequence[int] | None,
    *,
    after: GroupPosition | None,
    limit: int,
) -> list[Record]:
    """One row per group: the fields grouped by, then count, first_at, last_at, the id of a sample,
    and `latest`, the last death in any group.
    """
    query = await _groups_query(*_shape(filters, queues), tuple(by), after is not None)
    values = {**_values(filters, queues), "limit": limit}
    if after is not None:
        values |= {"after_size": after.size, "after_sample": after.sample, "latest": after.latest}
    return await db.rows(*query.with_values(values))


@compiled_once
def _page_query(filtered_by: Sequence[str], queue_filter: QueueFilter, has_after: bool, payload: bool) -> Query:
    query = _letters_query(payload=payload).where(*_conditions(filtered_by, queue_filter))
    if has_after:
        after = sa.tuple_(parameter("after_at", letters.c.dead_at.type), parameter("after_id", letters.c.id.type))
        query = query.where(sa.tuple_(letters.c.dead_at, letters.c.id) < after)
    page = query.order_by(letters.c.dead_at.desc(), letters.c.id.desc()).limit(_LIMIT)
    return within_bytes(page, lambda rows: [rows.c.dead_at.desc(), rows.c.id.desc()])


@compiled_once
def _letter_query() -> Query:
    return _letters_query(payload=True).where(
        letters.c.lane == parameter("lane", letters.c.lane.type), letters.c.id == parameter("id", letters.c.id.type)
    )


def _letters_query(*, payload: bool) -> Query:
    return sa.select(*job_columns(letters, payload=payload), letters.c.dead_at, letters.c.fingerprint)


@compiled_once
def _ids_query(filtered_by: Sequence[str], queue_filter: QueueFilter) -> Query:
    return (
        sa.select(letters.c.id)
        .where(*_conditions(filtered_by, queue_filter))
        .order_by(letters.c.dead_at, letters.c.id)
        .limit(_LIMIT)
    )


@compiled_once
def _count_query(filtered_by: Sequence[str], queue_filter: QueueFilter) -> Query:
    return sa.select(sa.func.count()).select_from(letters).where(*_conditions(filtered_by, queue_filter))


@compiled_once
def _groups_query(
    filtered_by: Sequence[str], queue_filter: QueueFilter, by: Sequence[GroupField], has_after: bool
) -> Query:
    """Groups of the same size are sorted by their samples, newest first.

    A sample changes only if its group shrinks, so it is as stable as the fields of the group, and
    shorter than a fingerprint.
    """
    query = (
        sa.select(
            *[_GROUPED_BY[field].label(field.value) for field in by],
            _GROUP_SIZE.label("count"),
            sa.func.min(letters.c.dead_at).label("first_at"),
            sa.func.max(letters.c.dead_at).label("last_at"),
            _SAMPLE.label("sample"),
            sa.func.max(sa.func.max(letters.c.dead_at)).over().label("latest"),
        )
        .where(*_conditions(filtered_by, queue_filter))
        .group_by(*[_GROUPED_BY[field] for field in by])
    )
    if has_after:
        after = sa.tuple_(parameter("after_size", sa.BigInteger), parameter("after_sample", sa.Text))
        query = query.where(letters.c.dead_at <= parameter("latest", letters.c.dead_at.type))
        query = query.having(sa.tuple_(_GROUP_SIZE, _SAMPLE) < after)
    return query.order_by(_GROUP_SIZE.desc(), _SAMPLE.desc()).limit(_LIMIT)


def _letter(row: Sequence[Any]) -> DeadLetterRow:
    *job, dead_at, fingerprint = row
    return DeadLetterRow(JobRow(*job), dead_at, fingerprint)


def _shape(filters: DeadLetterFilter, queues: Sequence[int] | None) -> tuple[tuple[str, ...], QueueFilter]:
    """The members that the request filters by, and whether it filters by one queue or several."""
    queue_filter: QueueFilter = "all" if queues is None else "one" if len(queues) == 1 else "several"
    return tuple(name for name in _FILTERS if getattr(filters, name) is not UNSET), queue_filter


def _values(filters: DeadLetterFilter, queues: Sequence[int] | None) -> dict[str, object]:
    values: dict[str, object] = {name: getattr(filters, name) for name in _FILTERS}
    if queues:
        values["first_lane"], values["last_lane"] = queues[0] * LANES_PER_QUEUE, (queues[0] + 1) * LANES_PER_QUEUE - 1
    return {**values, "queues": list(queues or ())}


def _conditions(filtered_by: Sequence[str], queue_filter: QueueFilter) -> list[sa.ColumnElement[bool]]:
    conditions = [_FILTERS[name](name) for name in filtered_by]
    if queue_filter == "one":
        first, last = (parameter(name, letters.c.lane.type) for name in ("first_lane", "last_lane"))
        conditions.append(letters.c.lane.between(first, last))
    elif queue_filter == "several":
        conditions.append(sa.any_(parameter("queues", sa.ARRAY(sa.Integer))) == _QUEUE_ID)
    return conditions


def _equals(name: str) -> sa.ColumnElement[bool]:
    return letters.c[name] == parameter(name, sa.Text)


_FILTERS: dict[str, Callable[[str], sa.ColumnElement[bool]]] = {
    "job_type": _equals,
    "reason": _equals,
    "error_type": _equals,
    "fingerprint": _equals,
    "dead_after": lambda name: letters.c.dead_at >= parameter(name, letters.c.dead_at.type),
    "dead_before": lambda name: letters.c.dead_at < parameter(name, letters.c.dead_at.type),
}
