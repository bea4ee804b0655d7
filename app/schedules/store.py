"""Reads, locks and writes schedules: the functions run the statements of schedules.sql."""

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import msgspec
from asyncpg import Record

from app.db.lanes import lane_of
from app.db.pool import Executor
from app.db.queries import load_queries
from app.errors import NotFound
from app.http.authorization import Access
from app.http.schema_types import value_or
from app.schedules.schemas import SchedulePut

SQL = load_queries(__file__)

_decoder = msgspec.json.Decoder(SchedulePut)


class ScheduleRow(NamedTuple):
    """A row of `schedules`. `spec` is the body of the PUT as JSON text, without `paused`."""

    name: str
    spec: str
    paused: bool
    next_run_at: datetime | None
    last_run_at: datetime | None
    last_job_id: UUID | None
    created_at: datetime
    updated_at: datetime

    @property
    def definition(self) -> SchedulePut:
        return _decoder.decode(self.spec)

    @property
    def queue(self) -> str:
        return value_or(self.definition.job.queue, "default")


def accessible(row: ScheduleRow | None, name: str, access: Access) -> ScheduleRow:
    """Returns the row. Raises NotFound if there is none, or if the caller may not access its queue."""
    if row is None or not access.allows(row.queue):
        raise NotFound(f"no schedule named {name}")
    return row


def _row_or_none(row: Record | None) -> ScheduleRow | None:
    return None if row is None else ScheduleRow(*row)


async def get_schedule(db: Executor, name: str) -> ScheduleRow | None:
    return _row_or_none(await db.row(*SQL.get_schedule(name=name)))


async def list_schedules(
    db: Executor, after: str, limit: int, queue_regex: str | None, max_bytes: int
) -> tuple[list[ScheduleRow], int]:
    """Returns the schedules of a page that fit into `max_bytes`, but at least one.

    Also returns how many schedules the page would have without that limit.
    """
    rows = await db.rows(*SQL.list_schedules(after=after, limit=limit, queue_regex=queue_regex, max_bytes=max_bytes))
    return [ScheduleRow(*row[:-1]) for row in rows], rows[0]["total"] if rows else 0


async def lock_schedule(db: Executor, name: str) -> ScheduleRow | None:
    return _row_or_none(await db.row(*SQL.lock_schedule(name=name)))


async def put_schedule(
    db: Executor, name: str, spec: str, *, paused: bool, next_run_at: datetime | None, now: datetime, is_locked: bool
) -> ScheduleRow | None:
    """Inserts a schedule, or updates the existing schedule if `is_locked`.

    `is_locked` says whether this transaction has found and locked the row. If it has not, and
    another transaction has created the schedule in the meantime, changes nothing and returns None.
    """
    statement = SQL.put_schedule(
        name=name, spec=spec, paused=paused, next_run_at=next_run_at, now=now, is_locked=is_locked
    )
    return _row_or_none(await db.row(*statement))


async def delete_schedule(db: Executor, name: str) -> ScheduleRow | None:
    return _row_or_none(await db.row(*SQL.delete_schedule(name=name)))


async def pause_or_resume(
    db: Executor, name: str, *, paused: bool, next_run_at: datetime | None, now: datetime
) -> ScheduleRow:
    """Sets `paused` of a schedule. This transaction must have locked the row."""
    (row,) = await db.rows(*SQL.pause_or_resume(name=name, paused=paused, next_run_at=next_run_at, now=now))
    return ScheduleRow(*row)


async def due_schedules(db: Executor, now: datetime, after: tuple[datetime, str], limit: int) -> list[ScheduleRow]:
    run_at, name = after
    rows = await db.rows(*SQL.due_schedules(now=now, after_run_at=run_at, after_name=name, limit=limit))
    return [ScheduleRow(*row) for row in rows]


async def lock_due_schedule(db: Executor, name: str, now: datetime) -> ScheduleRow | None:
    return _row_or_none(await db.row(*SQL.lock_due_schedule(name=name, now=now)))


async def advance_schedule(
    db: Executor, name: str, *, next_run_at: datetime | None, last_run_at: datetime | None, last_job_id: UUID | None
) -> None:
    await db.rows(
        *SQL.advance_schedule(name=name, next_run_at=next_run_at, last_run_at=last_run_at, last_job_id=last_job_id)
    )


async def next_schedule_at(db: Executor, now: datetime) -> datetime | None:
    instant: datetime | None = await db.value(*SQL.next_schedule_at(now=now))
    return instant


async def is_job_live(db: Executor, job_id: UUID) -> bool:
    return await db.value(*SQL.is_job_live(lane=lane_of(job_id), id=job_id)) is not None
