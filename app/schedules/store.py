"""Runs schedules.sql."""

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

_wanted = msgspec.json.Decoder(SchedulePut)


class ScheduleRow(NamedTuple):
    """`spec` is what was PUT, as JSON text, but for `paused`."""

    name: str
    spec: str
    paused: bool
    next_run_at: datetime | None
    last_run_at: datetime | None
    last_job_id: UUID | None
    created_at: datetime
    updated_at: datetime

    @property
    def wanted(self) -> SchedulePut:
        return _wanted.decode(self.spec)

    @property
    def queue(self) -> str:
        return value_or(self.wanted.job.queue, "default")


def accessible(row: ScheduleRow | None, name: str, access: Access) -> ScheduleRow:
    """A schedule for a queue that the caller does not reach is as good as none."""
    if row is None or not access.allows(row.queue):
        raise NotFound(f"no schedule named {name}")
    return row


def _row(row: Record | None) -> ScheduleRow | None:
    return None if row is None else ScheduleRow(*row)


async def get_schedule(on: Executor, name: str) -> ScheduleRow | None:
    return _row(await on.row(SQL.get_schedule, name))


async def list_schedules(
    on: Executor, after: str, limit: int, queues: str | None, max_bytes: int
) -> tuple[list[ScheduleRow], int]:
    """The schedules that fit into `max_bytes`, at least one, and the number of those within `limit`."""
    rows = await on.rows(SQL.list_schedules, after, limit, queues, max_bytes)
    return [ScheduleRow(*row[:-1]) for row in rows], rows[0]["total"] if rows else 0


async def lock_schedule(on: Executor, name: str) -> ScheduleRow | None:
    return _row(await on.row(SQL.lock_schedule, name))


async def put_schedule(
    on: Executor, name: str, spec: str, *, paused: bool, next_run_at: datetime | None, now: datetime, known: bool
) -> ScheduleRow | None:
    """`known`: the caller has locked one of this name. Otherwise one that has come meanwhile stays as it is."""
    return _row(await on.row(SQL.put_schedule, name, spec, paused, next_run_at, now, known))


async def delete_schedule(on: Executor, name: str) -> ScheduleRow | None:
    return _row(await on.row(SQL.delete_schedule, name))


async def pause_or_resume(
    on: Executor, name: str, *, paused: bool, next_run_at: datetime | None, now: datetime
) -> ScheduleRow:
    """Of a schedule that the caller has locked."""
    (row,) = await on.rows(SQL.pause_or_resume, name, paused, next_run_at, now)
    return ScheduleRow(*row)


async def due_schedules(on: Executor, now: datetime, after: tuple[datetime, str], limit: int) -> list[ScheduleRow]:
    return [ScheduleRow(*row) for row in await on.rows(SQL.due_schedules, now, *after, limit)]


async def lock_due_schedule(on: Executor, name: str, now: datetime) -> ScheduleRow | None:
    return _row(await on.row(SQL.lock_due_schedule, name, now))


async def advance_schedule(
    on: Executor, name: str, *, next_run_at: datetime | None, last_run_at: datetime | None, last_job_id: UUID | None
) -> None:
    await on.rows(SQL.advance_schedule, name, next_run_at, last_run_at, last_job_id)


async def next_schedule_at(on: Executor, now: datetime) -> datetime | None:
    found: datetime | None = await on.value(SQL.next_schedule_at, now)
    return found


async def live_job(on: Executor, job_id: UUID) -> bool:
    return await on.value(SQL.live_job, lane_of(job_id), job_id) is not None
