"""Inserts, finds, updates, cancels and purges jobs: the functions run the statements of jobs.sql."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from asyncpg import Record

from app.db.lanes import lane_of
from app.db.pool import Database, Executor
from app.db.queries import load_queries
from app.events import MovedJobRow
from app.jobs.coverage import coverage_columns
from app.jobs.new_jobs import NewJobs
from app.jobs.rows import JobChanges, JobRow, NewJob

SQL = load_queries(__file__)


async def enqueue(db: Executor, lane: int, jobs: Sequence[NewJob]) -> None:
    columns = NewJobs.of(jobs)
    await db.rows(*SQL.enqueue.bind_columns(columns.columns | coverage_columns(columns), lane=lane))


async def live_ids(db: Executor, lane: int, ids: Sequence[UUID]) -> set[UUID]:
    return {row["id"] for row in await db.rows(*SQL.live_ids(lane=lane, ids=ids))}


async def dead_ids(db: Executor, lane: int, ids: Sequence[UUID]) -> set[UUID]:
    return {row["id"] for row in await db.rows(*SQL.dead_ids(lane=lane, ids=ids))}


async def find(db: Executor, job_id: UUID, retention_now: datetime) -> JobRow | None:
    """Searches for a job among the live, then the finished, then the dead jobs.

    If the first search finds nothing, searches again, because the job may have moved between the
    tables in the meantime. Does not find a finished job whose retention has ended by
    `retention_now`.
    """
    lane, ids = lane_of(job_id), [job_id]
    for statement in 2 * (
        SQL.live_jobs(lane=lane, ids=ids),
        SQL.finished_jobs(lane=lane, ids=ids, retention_now=retention_now),
        SQL.dead_jobs(lane=lane, ids=ids),
    ):
        row = await db.row(*statement)
        if row is not None:
            return JobRow(*row)
    return None


async def update_job(
    db: Database, job_id: UUID, changes: JobChanges, *, now: datetime, held_groups: Sequence[str] | None
) -> MovedJobRow | None:
    row = await db.row(
        *SQL.update_job(lane=lane_of(job_id), job_id=job_id, now=now, held_groups=held_groups, **changes._asdict())
    )
    return MovedJobRow(*row) if row else None


async def replace_waiting(
    db: Executor, job_id: UUID, job: NewJob, *, now: datetime, held_groups: Sequence[str] | None
) -> MovedJobRow | None:
    row = await db.row(
        *SQL.replace_waiting(
            lane=lane_of(job_id),
            job_id=job_id,
            now=now,
            held_groups=held_groups,
            run_at=job.run_at,
            priority=job.priority,
            max_attempts=job.max_attempts,
            job_type=job.job_type,
            lease_seconds=job.lease_seconds,
            retry=job.retry,
            tags=job.tags,
            metadata=job.metadata,
            payload=job.payload,
            expires_at=job.expires_at,
            timeout_seconds=job.timeout_seconds,
            traceparent=job.traceparent,
            tracestate=job.tracestate,
        )
    )
    return MovedJobRow(*row) if row else None


async def cancel_waiting(
    db: Executor, lane: int, ids: Sequence[UUID], *, now: datetime, kept: tuple[datetime, bool], reason: str
) -> list[MovedJobRow]:
    """Cancels the jobs that still wait. Returns the cancelled jobs.

    `kept` is the result of `QueueCache.retention`: until when the cancelled jobs are kept, and
    whether they are archived then.
    """
    keep_until, archive = kept
    rows = await db.rows(
        *SQL.cancel_waiting(lane=lane, ids=ids, now=now, keep_until=keep_until, archive=archive, reason=reason)
    )
    return [MovedJobRow(*row) for row in rows]


async def move_unstarted_to_dead_letters(
    db: Database, lane: int, ids: Sequence[UUID], now: datetime
) -> list[MovedJobRow]:
    rows = await db.rows(*SQL.move_unstarted_to_dead_letters(lane=lane, ids=ids, now=now))
    return [MovedJobRow(*row) for row in rows]


async def past_start_deadline(db: Database, now: datetime, limit: int) -> list[UUID]:
    return [row["id"] for row in await db.rows(*SQL.past_start_deadline(now=now, limit=limit))]


async def request_cancel(db: Database, lane: int, ids: Sequence[UUID], now: datetime) -> list[Record]:
    return await db.rows(*SQL.request_cancel(lane=lane, ids=ids, now=now))


async def run_now(db: Database, job_id: UUID, now: datetime, held_groups: Sequence[str] | None) -> MovedJobRow | None:
    row = await db.row(*SQL.run_now(lane=lane_of(job_id), job_id=job_id, now=now, held_groups=held_groups))
    return MovedJobRow(*row) if row else None


async def due_jobs(db: Database, now: datetime, limit: int) -> list[UUID]:
    return [row["id"] for row in await db.rows(*SQL.due_jobs(now=now, limit=limit))]


async def next_due(db: Database) -> datetime | None:
    due: datetime | None = await db.value(*SQL.next_due())
    return due


async def make_due_ready(
    db: Database, lane: int, ids: Sequence[UUID], now: datetime, held_groups: Sequence[str] | None
) -> list[MovedJobRow]:
    rows = await db.rows(*SQL.make_due_ready(lane=lane, ids=ids, now=now, held_groups=held_groups))
    return sorted(MovedJobRow(*row) for row in rows)


async def count_waiting(db: Executor, lanes: Sequence[int]) -> int:
    waiting: int = await db.value(*SQL.count_waiting(lanes=lanes))
    return waiting


async def count_purgeable(db: Executor, lanes: range, states: Sequence[str]) -> int:
    count: int = await db.value(*SQL.count_purgeable(first_lane=lanes.start, end_lane=lanes.stop, states=states))
    return count


async def purgeable_jobs(
    db: Executor, after: tuple[int, UUID], end_lane: int, before: UUID, states: Sequence[str], limit: int
) -> list[UUID]:
    after_lane, after_id = after
    rows = await db.rows(
        *SQL.purgeable_jobs(
            after_lane=after_lane, after_id=after_id, end_lane=end_lane, before_id=before, states=states, limit=limit
        )
    )
    return [row["id"] for row in rows]


async def purge_waiting(db: Executor, lane: int, ids: Sequence[UUID], states: Sequence[str]) -> int:
    return len(await db.rows(*SQL.purge_waiting(lane=lane, ids=ids, states=states)))
