"""Runs workers.sql."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from app.db.pool import Runs, columns
from app.db.sql import statements
from app.workers.schemas import Worker

SQL = statements(__file__)


class WorkerRow(NamedTuple):
    id: str
    directive: str
    last_seen_at: datetime
    leases: int

    def told(self) -> Worker:
        return Worker(worker_id=self.id, directive=self.directive, last_seen_at=self.last_seen_at, held_leases=self.leases)


async def saw_workers(on: Runs, ids: Sequence[str], now: datetime) -> None:
    await on.rows(SQL.saw_workers, ids, now)


async def directed_workers(on: Runs) -> dict[str, str]:
    return {row["id"]: row["directive"] for row in await on.rows(SQL.directed_workers)}


async def direct_worker(on: Runs, worker_id: str, directive: str) -> bool:
    return await on.value(SQL.direct_worker, worker_id, directive) is not None


async def list_workers(on: Runs, after: str, limit: int) -> list[WorkerRow]:
    return [WorkerRow(*row) for row in await on.rows(SQL.list_workers, after, limit)]


async def get_worker(on: Runs, worker_id: str) -> WorkerRow | None:
    row = await on.row(SQL.get_worker, worker_id)
    return WorkerRow(*row) if row else None


async def forget_workers(on: Runs, seen_before: datetime, told_seen_before: datetime) -> int:
    return len(await on.rows(SQL.forget_workers, seen_before, told_seen_before))


async def note_asks(on: Runs, asked: Sequence[tuple[str, str]], now: datetime) -> None:
    """Asked are (queue, job type)."""
    await on.rows(SQL.note_asks, *columns(asked), now)


async def last_asked(on: Runs, queue: str, job_type: str) -> datetime | None:
    last: datetime | None = await on.value(SQL.last_asked, queue, job_type)
    return last


async def forget_asks(on: Runs, before: datetime) -> None:
    await on.rows(SQL.forget_asks, before)
