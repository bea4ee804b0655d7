"""GET /jobs: the WHERE is assembled from the filters. Each lane is read in the order of its primary key and the lanes are merged,
so that a page costs about its own length however many jobs there are."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from app.db.assembled import compiled
from app.db.lanes import first_id_at
from app.db.pool import Database
from app.db.tables import dead_letters, finished_jobs, jobs
from app.jobs.schemas import JobFilter, JobState, Order
from app.jobs.store import JobRow
from app.web.shapes import UNSET

_TABLE_OF = {
    JobState.SCHEDULED: jobs,
    JobState.BLOCKED: jobs,
    JobState.READY: jobs,
    JobState.RUNNING: jobs,
    JobState.COMPLETED: finished_jobs,
    JobState.CANCELLED: finished_jobs,
    JobState.DEAD: dead_letters,
}
_STORED_AS = {JobState.READY: ("ready", "parked")}
LIVE: Sequence[sa.Table] = (jobs,)
EVERYWHERE: Sequence[sa.Table] = (jobs, finished_jobs, dead_letters)
_RENAMED: dict[sa.Table, dict[str, sa.ColumnElement[Any]]] = {
    dead_letters: {"state": sa.literal("dead"), "state_reason": dead_letters.c.reason, "finished_at": dead_letters.c.dead_at},
}


async def list_jobs(
    db: Database,
    lanes: Sequence[int],
    wanted: JobFilter,
    *,
    after: UUID | None = None,
    order: Order = Order.DESC,
    limit: int,
    tables: Sequence[sa.Table] = EVERYWHERE,
) -> list[JobRow]:
    if wanted.state is not UNSET:
        tables = [table for table in tables if table is _TABLE_OF[wanted.state]]
    if not tables or not lanes:
        return []
    query = _merged(tables, lanes, wanted, after, order, limit)
    return [JobRow(*row) for row in await db.rows(*compiled(query))]


def _merged(
    tables: Sequence[sa.Table], lanes: Sequence[int], wanted: JobFilter, after: UUID | None, order: Order, limit: int
) -> sa.Select[tuple[object, ...]]:
    lane = sa.func.unnest(sa.bindparam("lanes", list(lanes), sa.ARRAY(sa.Integer))).table_valued("lane").render_derived()
    parts = [_of_one_lane(table, lane.c.lane, wanted, after, order, limit) for table in tables]
    rows = sa.union_all(*[sa.select(part) for part in parts]).lateral("rows")
    return sa.select(rows).select_from(lane.join(rows, sa.true())).order_by(_by_age(rows.c.id, order)).limit(limit)


def _of_one_lane(
    table: sa.Table, lane: sa.ColumnElement[int], wanted: JobFilter, after: UUID | None, order: Order, limit: int
) -> sa.Subquery:
    # The lane comes from outside: without the last word SQLAlchemy adds all lanes to the FROM, and each job comes once per lane.
    query = sa.select(*job_columns(table)).where(table.c.lane == lane, *_conditions(table, wanted)).correlate_except(table)
    if after is not None:
        query = query.where(table.c.id < after if order is Order.DESC else table.c.id > after)
    return query.order_by(_by_age(table.c.id, order)).limit(limit).subquery(f"part_{table.name}")


def _by_age(column: sa.ColumnElement[UUID], order: Order) -> sa.ColumnElement[UUID]:
    return column.desc() if order is Order.DESC else column.asc()


def job_columns(table: sa.Table) -> list[sa.ColumnElement[object]]:
    return [_column(table, name) for name in JobRow._fields]


def _column(table: sa.Table, name: str) -> sa.ColumnElement[object]:
    """The same columns from each table, NULL where a table has no such thing."""
    if name in _RENAMED.get(table, {}):
        return _RENAMED[table][name].label(name)
    if name in table.c:
        return table.c[name].label(name)
    owner = finished_jobs if name in finished_jobs.c else jobs
    return sa.cast(sa.null(), owner.c[name].type).label(name)


def _conditions(table: sa.Table, wanted: JobFilter) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    if wanted.state is not UNSET and table is not dead_letters:
        conditions.append(table.c.state.in_(_STORED_AS.get(wanted.state, (wanted.state.value,))))
    if wanted.job_type is not UNSET:
        conditions.append(table.c.job_type == wanted.job_type)
    if wanted.group is not UNSET:
        conditions.append(table.c.group_key == wanted.group)
    if wanted.tag is not UNSET:
        conditions.append(sa.cast(table.c.tags, JSONB).has_key(wanted.tag))
    if wanted.created_after is not UNSET:
        conditions.append(table.c.id >= first_id_at(wanted.created_after))
    if wanted.created_before is not UNSET:
        conditions.append(table.c.id < first_id_at(wanted.created_before))
    if table is finished_jobs:
        conditions.append(table.c.keep_until > sa.func.now())
    return conditions
