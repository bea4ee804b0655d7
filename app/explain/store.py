"""Reads why a job is not running: the functions run the statements of explain.sql."""

from typing import NamedTuple
from uuid import UUID

from app.db.lanes import lane_of
from app.db.pool import Executor
from app.db.queries import load_queries

SQL = load_queries(__file__)

MAX_COUNTED = 1000  # how many jobs ahead are counted; a higher exact count is of no use
MAX_LISTED = 20  # the limit of `admitted_of_group`


class WaitingJobRow(NamedTuple):
    """The columns of a job that explain its wait.

    `admission` is None unless the job is admitted. `waiting_for` lists its unfinished parents.
    """

    priority: int
    admission: int | None
    waiting_for: list[UUID] | None


async def waiting_job(db: Executor, job_id: UUID) -> WaitingJobRow | None:
    row = await db.row(*SQL.waiting_job(lane=lane_of(job_id), id=job_id))
    return WaitingJobRow(*row) if row else None


async def admitted_of_group(db: Executor, lane: int, group: str) -> list[UUID]:
    return [row["id"] for row in await db.rows(*SQL.admitted_of_group(lane=lane, group=group))]


async def ahead_in_group(db: Executor, job_id: UUID, group: str) -> int:
    ahead: int = await db.value(*SQL.ahead_in_group(lane=lane_of(job_id), group=group, id=job_id, limit=MAX_COUNTED))
    return ahead


async def ahead_in_queue(db: Executor, job_id: UUID, priority: int) -> int:
    ahead: int = await db.value(
        *SQL.ahead_in_queue(lane=lane_of(job_id), priority=priority, id=job_id, limit=MAX_COUNTED)
    )
    return ahead


async def ahead_admitted(db: Executor, job_id: UUID, priority: int, admission: int) -> int:
    ahead: int = await db.value(
        *SQL.ahead_admitted(lane=lane_of(job_id), priority=priority, admission=admission, id=job_id, limit=MAX_COUNTED)
    )
    return ahead
