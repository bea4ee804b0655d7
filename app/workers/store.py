"""Reads and writes workers and the poll history: the functions run the statements of workers.sql."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from app.db.pool import Executor
from app.db.queries import load_queries
from app.workers.schemas import Worker

SQL = load_queries(__file__)


class WorkerRow(NamedTuple):
    id: str
    directive: str
    last_seen_at: datetime
    leases: int

    def to_response(self) -> Worker:
        return Worker(
            worker_id=self.id, directive=self.directive, last_seen_at=self.last_seen_at, held_leases=self.leases
        )


class PolledType(NamedTuple):
    """A queue and a job type that a poll accepts. An empty `job_type` stands for every type."""

    queue: str
    job_type: str


async def record_workers(db: Executor, ids: Sequence[str], now: datetime, max_rows: int) -> None:
    await db.rows(*SQL.record_workers(ids=ids, now=now, max_rows=max_rows))


async def workers_with_directive(db: Executor) -> dict[str, str]:
    return {row["id"]: row["directive"] for row in await db.rows(*SQL.workers_with_directive())}


async def set_directive(db: Executor, worker_id: str, directive: str) -> bool:
    return await db.value(*SQL.set_directive(id=worker_id, directive=directive)) is not None


async def list_workers(db: Executor, after: str, limit: int) -> list[WorkerRow]:
    return [WorkerRow(*row) for row in await db.rows(*SQL.list_workers(after=after, limit=limit))]


async def get_worker(db: Executor, worker_id: str) -> WorkerRow | None:
    row = await db.row(*SQL.get_worker(id=worker_id))
    return WorkerRow(*row) if row else None


async def delete_workers(db: Executor, seen_before: datetime, directed_seen_before: datetime) -> int:
    """Deletes workers that were last seen before `seen_before`. Returns how many were deleted.

    A worker with a directive is deleted only if it was last seen before `directed_seen_before`.
    """
    statement = SQL.delete_workers(seen_before=seen_before, directed_seen_before=directed_seen_before)
    return len(await db.rows(*statement))


async def record_polls(db: Executor, polls: Sequence[PolledType], now: datetime, max_rows: int) -> None:
    queues, job_types = [poll.queue for poll in polls], [poll.job_type for poll in polls]
    await db.rows(*SQL.record_polls(queues=queues, job_types=job_types, now=now, max_rows=max_rows))


async def last_polled(db: Executor, queue: str, job_type: str) -> datetime | None:
    last: datetime | None = await db.value(*SQL.last_polled(queue=queue, job_type=job_type))
    return last


async def delete_poll_history(db: Executor, before: datetime) -> None:
    await db.rows(*SQL.delete_poll_history(before=before))
