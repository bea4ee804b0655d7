"""Lists jobs with filters, page by page.

The query reads the jobs of each lane in the order of the primary key, and merges the lanes. So the
cost of a page depends on the length of the page and on the number of jobs that the filters skip,
but not on the number of stored jobs. A page ends early if its jobs are too large for one response.

The query takes the lanes from the tables of statistics, because the transaction that adds a job to
a lane also writes statistics of that lane. On Citus, each node then lists the jobs of its own lanes:
Citus joins a lane with its jobs if both are in tables that are sharded by lane, and rejects a list
of lanes from a parameter.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import sqlalchemy as sa
from asyncpg import Record
from sqlalchemy.dialects.postgresql import JSONB

from app.db.lanes import first_id_at
from app.db.pool import Executor
from app.db.sqlalchemy_queries import CompiledQuery, compiled_once, parameter
from app.db.tables import dead_letters, finished_jobs, jobs, stat_deltas, stat_totals
from app.http.schema_types import UNSET, UnsetType
from app.jobs.rows import JobRow
from app.jobs.schemas import JobFilter, JobState, Order

Query: TypeAlias = sa.Select[*tuple[Any, ...]]
OrderBy: TypeAlias = Callable[[sa.FromClause], Sequence[sa.ColumnElement[Any]]]
_LARGE = ("payload", "checkpoint", "result", "metadata")
_TABLE_OF = {
    JobState.SCHEDULED: jobs,
    JobState.BLOCKED: jobs,
    JobState.READY: jobs,
    JobState.RUNNING: jobs,
    JobState.COMPLETED: finished_jobs,
    JobState.CANCELLED: finished_jobs,
    JobState.DEAD: dead_letters,
}
_LIMIT = parameter("limit", sa.Integer)
_STORED_AS = {JobState.READY: ("ready", "pending")}
ALL_TABLES: Sequence[sa.Table] = (jobs, finished_jobs, dead_letters)
_RENAMED: dict[sa.Table, dict[str, sa.ColumnElement[Any]]] = {
    dead_letters: {
        "state": sa.literal("dead"),
        "state_reason": dead_letters.c.reason,
        "finished_at": dead_letters.c.dead_at,
    },
}


class JobPage(NamedTuple):
    """The first jobs of a page, as many as fit into the byte limit.

    `total` is the number of jobs that the page would have without that limit.
    """

    rows: list[Record]
    total: int

    @staticmethod
    def job(row: Record) -> JobRow:
        return JobRow(*row[:-1])


async def list_jobs(
    db: Executor,
    lanes: Sequence[int],
    job_filter: JobFilter,
    *,
    retention_now: datetime,
    after: UUID | None,
    order: Order,
    limit: int,
    max_bytes: int,
    payload: bool,
) -> JobPage:
    tables = _tables(ALL_TABLES, job_filter)
    if not tables or not lanes:
        return JobPage([], 0)
    query = await _page_query(tables, job_filter.state, _filtered_by(job_filter), order, after is not None, payload)
    values = {
        **_values(job_filter),
        "lanes": list(lanes),
        "retention_now": retention_now,
        "after": after,
        "limit": limit,
    }
    rows = await db.rows(*query.with_values({**values, "max_bytes": max_bytes}))
    return JobPage(rows, rows[0]["total"] if rows else 0)


async def matching_ids(db: Executor, lanes: Sequence[int], job_filter: JobFilter, limit: int) -> list[UUID]:
    """Returns the ids of live jobs that match the filter, newest first."""
    if not _tables([jobs], job_filter) or not lanes:
        return []
    query = await _ids_query(job_filter.state, _filtered_by(job_filter))
    values = {**_values(job_filter), "lanes": list(lanes), "limit": limit}
    return await ids_of(db, query, values)


async def ids_of(db: Executor, query: CompiledQuery, values: Mapping[str, object]) -> list[UUID]:
    """Returns the ids that the query finds.

    Selects the ids as one array, because the driver decodes an array faster than rows.
    """
    ids: list[UUID] = await db.value(f"SELECT ARRAY({query.text})", *query.arguments(values))
    return ids


@compiled_once
def _page_query(
    tables: Sequence[sa.Table],
    state: JobState | UnsetType,
    filtered_by: Sequence[str],
    order: Order,
    has_after: bool,
    payload: bool,
) -> Query:
    parts = {
        table: sa.select(*job_columns(table, payload=payload)).where(*_conditions(table, state, filtered_by))
        for table in tables
    }
    return within_bytes(_merge_lanes(parts, order, has_after=has_after), lambda rows: [_by_age(rows.c.id, order)])


@compiled_once
def _ids_query(state: JobState | UnsetType, filtered_by: Sequence[str]) -> Query:
    query = sa.select(jobs.c.id).where(*_conditions(jobs, state, filtered_by))
    return _merge_lanes({jobs: query}, Order.DESC, has_after=False)


def _filtered_by(job_filter: JobFilter) -> tuple[str, ...]:
    return tuple(name for name in _FILTERS if getattr(job_filter, name) is not UNSET)


def _values(job_filter: JobFilter) -> dict[str, object]:
    values: dict[str, object] = {name: getattr(job_filter, name) for name in _FILTERS}
    for name in ("created_after", "created_before"):
        values[name] = None if values[name] is UNSET else first_id_at(getattr(job_filter, name))
    return values


def _tables(tables: Sequence[sa.Table], job_filter: JobFilter) -> tuple[sa.Table, ...]:
    return tuple(table for table in tables if job_filter.state is UNSET or table is _TABLE_OF[job_filter.state])


def within_bytes(page: Query, order_by: OrderBy) -> Query:
    """Selects the first rows of a page that fit into `max_bytes`, but at least one row.

    `total` is the number of rows in the whole page. Returns only the last attempt of each job,
    because a list shows only the last error.

    Postgres knows the size of a text without reading the text, but not the size of an array's
    element, and twenty attempts may be 5 MB. So the query drops rows in two steps: first by the
    sizes of their texts and of their arrays of attempts as stored, then by the size of the last
    attempt.
    """
    rows, max_bytes = page.subquery("page"), parameter("max_bytes", sa.BigInteger)
    size = sum((_length(rows.c[name]) for name in _LARGE), sa.literal(0))
    measured = sa.select(
        *rows.c,
        size.label("size"),
        sa.func.row_number().over(order_by=order_by(rows)).label("row_number"),
        _running_total(size + sa.func.coalesce(sa.func.pg_column_size(rows.c.attempts), 0), order_by(rows)).label(
            "stored"
        ),
        sa.func.count().over().label("total"),
    ).subquery("measured")
    number = sa.func.cardinality(measured.c.attempts)
    last = measured.c.attempts[number:number].label("attempts")
    chosen = sa.select(
        *[last if name == "attempts" else measured.c[name] for name in rows.c.keys()],  # noqa: SIM118 (not a dict)
        measured.c.total,
        measured.c.row_number,
        _running_total(measured.c.size + _length(measured.c.attempts[number]), order_by(measured)).label("bytes"),
    )
    chosen_rows = chosen.where(sa.or_(measured.c.stored <= max_bytes, measured.c.row_number == 1)).subquery("chosen")
    fits = sa.or_(chosen_rows.c.bytes <= max_bytes, chosen_rows.c.row_number == 1)
    return (
        sa.select(*[chosen_rows.c[name] for name in (*rows.c.keys(), "total")])
        .where(fits)
        .order_by(*order_by(chosen_rows))
    )


def _length(text: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    return sa.func.coalesce(sa.func.octet_length(text), 0)


def _running_total(size: sa.ColumnElement[Any], order_by: Sequence[sa.ColumnElement[Any]]) -> sa.ColumnElement[int]:
    return sa.func.sum(size).over(order_by=order_by, rows=(None, 0))


def _merge_lanes(parts: Mapping[sa.Table, Query], order: Order, *, has_after: bool) -> Query:
    lanes = sa.union(*[_lanes_in(table) for table in (stat_totals, stat_deltas)]).subquery("lanes")
    selects = [_select_lane(table, query, lanes.c.lane, order, has_after=has_after) for table, query in parts.items()]
    rows = sa.union_all(*[sa.select(part) for part in selects]).lateral("rows")
    return sa.select(rows).select_from(lanes.join(rows, sa.true())).order_by(_by_age(rows.c.id, order)).limit(_LIMIT)


def _lanes_in(statistics: sa.Table) -> sa.Select[tuple[int]]:
    return sa.select(statistics.c.lane).where(statistics.c.lane == sa.any_(parameter("lanes", sa.ARRAY(sa.Integer))))


def _select_lane(
    table: sa.Table, query: Query, lane: sa.ColumnElement[int], order: Order, *, has_after: bool
) -> sa.Subquery:
    # The lane comes from the outer query. Without correlate_except SQLAlchemy adds the lanes to the
    # FROM of this query, too, and each job appears once for each lane.
    query = query.where(table.c.lane == lane).correlate_except(table)
    if has_after:
        after = parameter("after", table.c.id.type)
        query = query.where(table.c.id < after if order is Order.DESC else table.c.id > after)
    return query.order_by(_by_age(table.c.id, order)).limit(_LIMIT).subquery(f"part_{table.name}")


def _by_age(column: sa.ColumnElement[UUID], order: Order) -> sa.ColumnElement[UUID]:
    return column.desc() if order is Order.DESC else column.asc()


def job_columns(table: sa.Table, *, payload: bool = True) -> list[sa.ColumnElement[object]]:
    return [_column(table, name) if payload or name != "payload" else _null(table, name) for name in JobRow._fields]


def _column(table: sa.Table, name: str) -> sa.ColumnElement[object]:
    """Returns the column of this table for a field of JobRow, or NULL if there is none."""
    if name in _RENAMED.get(table, {}):
        return _RENAMED[table][name].label(name)
    if name in table.c:
        return table.c[name].label(name)
    return _null(finished_jobs if name in finished_jobs.c else jobs, name)


def _null(table: sa.Table, name: str) -> sa.ColumnElement[object]:
    return sa.cast(sa.null(), table.c[name].type).label(name)


def _conditions(
    table: sa.Table, state: JobState | UnsetType, filtered_by: Sequence[str]
) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = [_FILTERS[name](table, name) for name in filtered_by]
    if isinstance(state, JobState) and table is not dead_letters:
        conditions.append(table.c.state.in_(_STORED_AS.get(state, (state.value,))))
    if table is finished_jobs:
        conditions.append(table.c.keep_until > parameter("retention_now", table.c.keep_until.type))
    return conditions


_FILTERS: dict[str, Callable[[sa.Table, str], sa.ColumnElement[bool]]] = {
    "job_type": lambda table, name: table.c.job_type == parameter(name, sa.Text),
    "group": lambda table, name: table.c.group_key == parameter(name, sa.Text),
    "tag": lambda table, name: sa.cast(table.c.tags, JSONB).has_key(parameter(name, sa.Text)),
    "created_after": lambda table, name: table.c.id >= parameter(name, table.c.id.type),
    "created_before": lambda table, name: table.c.id < parameter(name, table.c.id.type),
}
