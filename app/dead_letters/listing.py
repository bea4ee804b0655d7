"""Lists, counts and groups dead letters, with queries that are built from the filters."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias
from uuid import UUID

import sqlalchemy as sa
from asyncpg import Record

from app.db.lanes import LANES_PER_QUEUE
from app.db.pool import Executor
from app.db.sqlalchemy_queries import compiled_once, parameter
from app.db.tables import dead_letters
from app.dead_letters.schemas import DeadLetterFilter, GroupField
from app.http.schema_types import UNSET
from app.jobs.listing import Query, ids_of, job_columns, within_bytes
from app.jobs.rows import JobRow
from app.slices import map_in_slices

QueueFilter: TypeAlias = Literal["all", "one", "several"]
_LIMIT = parameter("limit", sa.Integer)
_QUEUE_ID = dead_letters.c.lane // LANES_PER_QUEUE
_GROUPED_BY = {
    GroupField.QUEUE: _QUEUE_ID,
    GroupField.JOB_TYPE: dead_letters.c.job_type,
    GroupField.FINGERPRINT: dead_letters.c.fingerprint,
}


_GROUP_SIZE = sa.func.count()
# As text, because Postgres has no max(uuid) before version 18.
_SAMPLE = sa.func.max(sa.cast(dead_letters.c.id, sa.Text).collate("C"))


class GroupPosition(NamedTuple):
    """The position after a page of groups. Pages list the largest groups first.

    `size` and `sample` are those of the last group of the page. `latest` is the newest `dead_at`
    when the first page was read. Later pages count only jobs with a `dead_at` up to `latest`. So a
    group that no page has listed yet cannot grow larger than the listed groups, and no group is
    left out. A group that shrinks in the meantime may be listed again, with its new count.
    """

    size: int
    sample: str
    latest: datetime


class DeadLetterRow(NamedTuple):
    job: JobRow
    dead_at: datetime
    fingerprint: str


class DeadLetterPage(NamedTuple):
    """The first dead letters of a page, as many as fit into the byte limit.

    `total` is the number of dead letters that the page would have without that limit.
    """

    rows: list[DeadLetterRow]
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
    query = await _page_query(*_query_parts(filters, queues), after is not None, payload)
    values = {**_values(filters, queues), "limit": limit, "max_bytes": max_bytes}
    if after is not None:
        values["after_at"], values["after_id"] = after
    rows = await db.rows(*query.with_values(values))
    page = await map_in_slices(lambda row: _to_row(row[:-1]), rows)
    return DeadLetterPage(page, rows[0]["total"] if rows else 0)


async def get_dead_letter(db: Executor, lane: int, job_id: UUID) -> DeadLetterRow | None:
    query = await _single_query()
    row = await db.row(*query.with_values({"lane": lane, "id": job_id}))
    return _to_row(tuple(row)) if row is not None else None


async def matching_ids(db: Executor, filters: DeadLetterFilter, queues: Sequence[int] | None, limit: int) -> list[UUID]:
    """Returns the ids of matching dead letters, in the order in which the jobs became dead.

    So a replay with a limit replays the jobs that have been dead for the longest time.
    """
    return await ids_of(
        db, await _ids_query(*_query_parts(filters, queues)), {**_values(filters, queues), "limit": limit}
    )


async def count(db: Executor, filters: DeadLetterFilter, queues: Sequence[int] | None) -> int:
    query = await _count_query(*_query_parts(filters, queues))
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
    """Groups dead letters by the fields `by`, and counts the dead letters in each group.

    Each row has the fields `by`, then count, first_at, last_at, the id of a sample, and `latest`:
    the newest `dead_at` in any group.
    """
    query = await _groups_query(*_query_parts(filters, queues), tuple(by), after is not None)
    values = {**_values(filters, queues), "limit": limit}
    if after is not None:
        values |= {"after_size": after.size, "after_sample": after.sample, "latest": after.latest}
    return await db.rows(*query.with_values(values))


@compiled_once
def _page_query(filtered_by: Sequence[str], queue_filter: QueueFilter, has_after: bool, payload: bool) -> Query:
    query = _select(payload=payload).where(*_conditions(filtered_by, queue_filter))
    if has_after:
        after = sa.tuple_(
            parameter("after_at", dead_letters.c.dead_at.type), parameter("after_id", dead_letters.c.id.type)
        )
        query = query.where(sa.tuple_(dead_letters.c.dead_at, dead_letters.c.id) < after)
    page = query.order_by(dead_letters.c.dead_at.desc(), dead_letters.c.id.desc()).limit(_LIMIT)
    return within_bytes(page, lambda rows: [rows.c.dead_at.desc(), rows.c.id.desc()])


@compiled_once
def _single_query() -> Query:
    return _select(payload=True).where(
        dead_letters.c.lane == parameter("lane", dead_letters.c.lane.type),
        dead_letters.c.id == parameter("id", dead_letters.c.id.type),
    )


def _select(*, payload: bool) -> Query:
    return sa.select(*job_columns(dead_letters, payload=payload), dead_letters.c.dead_at, dead_letters.c.fingerprint)


@compiled_once
def _ids_query(filtered_by: Sequence[str], queue_filter: QueueFilter) -> Query:
    return (
        sa.select(dead_letters.c.id)
        .where(*_conditions(filtered_by, queue_filter))
        .order_by(dead_letters.c.dead_at, dead_letters.c.id)
        .limit(_LIMIT)
    )


@compiled_once
def _count_query(filtered_by: Sequence[str], queue_filter: QueueFilter) -> Query:
    return sa.select(sa.func.count()).select_from(dead_letters).where(*_conditions(filtered_by, queue_filter))


@compiled_once
def _groups_query(
    filtered_by: Sequence[str], queue_filter: QueueFilter, by: Sequence[GroupField], has_after: bool
) -> Query:
    """Selects the largest groups first. Groups of the same size are sorted by sample, newest first.

    Sorts by sample and not by the fields of the group, because a sample is shorter than a
    fingerprint. A sample is as stable as the fields: it changes only if its group shrinks.
    """
    query = (
        sa.select(
            *[_GROUPED_BY[field].label(field.value) for field in by],
            _GROUP_SIZE.label("count"),
            sa.func.min(dead_letters.c.dead_at).label("first_at"),
            sa.func.max(dead_letters.c.dead_at).label("last_at"),
            _SAMPLE.label("sample"),
            sa.func.max(sa.func.max(dead_letters.c.dead_at)).over().label("latest"),
        )
        .where(*_conditions(filtered_by, queue_filter))
        .group_by(*[_GROUPED_BY[field] for field in by])
    )
    if has_after:
        after = sa.tuple_(parameter("after_size", sa.BigInteger), parameter("after_sample", sa.Text))
        query = query.where(dead_letters.c.dead_at <= parameter("latest", dead_letters.c.dead_at.type))
        query = query.having(sa.tuple_(_GROUP_SIZE, _SAMPLE) < after)
    return query.order_by(_GROUP_SIZE.desc(), _SAMPLE.desc()).limit(_LIMIT)


def _to_row(row: Sequence[Any]) -> DeadLetterRow:
    *job, dead_at, fingerprint = row
    return DeadLetterRow(JobRow(*job), dead_at, fingerprint)


def _query_parts(filters: DeadLetterFilter, queues: Sequence[int] | None) -> tuple[tuple[str, ...], QueueFilter]:
    """Returns the fields that the request filters by, and how many queues it selects.

    A query is compiled once for each combination of fields and `all`, `one` or `several` queues.
    """
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
        first, last = (parameter(name, dead_letters.c.lane.type) for name in ("first_lane", "last_lane"))
        conditions.append(dead_letters.c.lane.between(first, last))
    elif queue_filter == "several":
        conditions.append(sa.any_(parameter("queues", sa.ARRAY(sa.Integer))) == _QUEUE_ID)
    return conditions


def _equals(name: str) -> sa.ColumnElement[bool]:
    return dead_letters.c[name] == parameter(name, sa.Text)


_FILTERS: dict[str, Callable[[str], sa.ColumnElement[bool]]] = {
    "job_type": _equals,
    "reason": _equals,
    "error_type": _equals,
    "fingerprint": _equals,
    "dead_after": lambda name: dead_letters.c.dead_at >= parameter(name, dead_letters.c.dead_at.type),
    "dead_before": lambda name: dead_letters.c.dead_at < parameter(name, dead_letters.c.dead_at.type),
}
