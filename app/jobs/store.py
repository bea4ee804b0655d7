"""Runs jobs.sql, and turns its rows into jobs."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from asyncpg import LockNotAvailableError, Record

from app.db.lanes import created_at, lane_of
from app.db.pool import Database, Runs, columns
from app.db.sql import statements
from app.errors import IdempotencyKeyInUse
from app.jobs.schemas import Attempt, Job, Progress
from app.web.shapes import UNSET, Raw, UnsetType, or_unset, raw_or_unset

SQL = statements(__file__)

_progress = msgspec.json.Decoder(Progress)
_attempt = msgspec.json.Decoder(Attempt)
_tags = msgspec.json.Decoder(list[str])
_metadata = msgspec.json.Decoder(dict[str, Raw])


class NewJob(NamedTuple):
    """The columns of `enqueue`, in its order."""

    id: UUID
    state: str
    run_at: datetime
    priority: int
    max_attempts: int
    job_type: str
    group_key: str | None
    lease_seconds: int | None
    retry: str | None
    tags: str | None
    metadata: str | None
    traceparent: str | None
    tracestate: str | None
    replayed_from: UUID | None
    payload: str


class JobRow(NamedTuple):
    """A job as the three tables tell it: live, finished or dead."""

    lane: int
    id: UUID
    job_type: str
    payload: str
    state: str
    state_reason: str | None
    priority: int
    attempt: int
    max_attempts: int
    crashes: int
    deliveries: int
    run_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    worker_id: str | None
    lease_expires_at: datetime | None
    progress: str | None
    checkpoint: str | None
    result: str | None
    attempts: list[str] | None
    group_key: str | None
    tags: str | None
    metadata: str | None
    replayed_from: UUID | None
    replay_count: int
    cancel_requested_at: datetime | None

    def told(self, queue: str) -> Job:
        return Job(
            id=self.id,
            queue=queue,
            job_type=self.job_type,
            payload=Raw(self.payload.encode()),
            state=self.state,
            state_reason=or_unset(self.state_reason),
            priority=self.priority,
            attempt=self.attempt,
            max_attempts=self.max_attempts,
            crashes=self.crashes,
            deliveries=self.deliveries,
            run_at=self.run_at,
            created_at=created_at(self.id),
            started_at=or_unset(self.started_at),
            finished_at=or_unset(self.finished_at),
            duration_ms=self._duration_ms(),
            worker_id=or_unset(self.worker_id),
            lease_expires_at=or_unset(self.lease_expires_at),
            progress=UNSET if self.progress is None else _progress.decode(self.progress),
            checkpoint=raw_or_unset(self.checkpoint),
            result=raw_or_unset(self.result),
            error=UNSET if self.state == "completed" else self._last_error(),
            group=or_unset(self.group_key),
            tags=tags_of(self.tags),
            metadata=metadata_of(self.metadata),
            replayed_from=or_unset(self.replayed_from),
            replay_count=self.replay_count,
            cancel_requested_at=or_unset(self.cancel_requested_at),
        )

    def _duration_ms(self) -> int | UnsetType:
        if self.started_at is None or self.finished_at is None:
            return UNSET
        return max(0, round((self.finished_at - self.started_at).total_seconds() * 1000))

    def _last_error(self) -> Any:
        return _attempt.decode(self.attempts[-1]).error if self.attempts else UNSET

    def all_attempts(self) -> list[Attempt]:
        """The failed ones that were kept, then the one that the row itself tells of: running or completed."""
        past = [_attempt.decode(text) for text in self.attempts or []]
        ends = {"running": "running", "completed": "complete"}
        if self.state not in ends:
            return past
        return [
            *past,
            Attempt(
                attempt=self.attempt,
                worker_id=or_unset(self.worker_id),
                started_at=or_unset(self.started_at),
                ended_at=or_unset(self.finished_at),
                outcome=ends[self.state],
            ),
        ]


def tags_of(text: str | None) -> list[str]:
    return _tags.decode(text) if text else []


def metadata_of(text: str | None) -> dict[str, Raw]:
    return _metadata.decode(text) if text else {}


async def enqueue(on: Runs, lane: int, jobs: Sequence[NewJob]) -> None:
    await on.rows(SQL.enqueue, lane, *columns(jobs))


async def live_jobs(db: Database, lane: int, ids: Sequence[UUID]) -> list[JobRow]:
    return [JobRow(*row) for row in await db.rows(SQL.live_jobs, lane, ids)]


async def dead_jobs(db: Database, lane: int, ids: Sequence[UUID]) -> list[JobRow]:
    return [JobRow(*row) for row in await db.rows(SQL.dead_jobs, lane, ids)]


async def find(db: Database, job_id: UUID) -> JobRow | None:
    """Live first, then finished, then dead. Once more if it was nowhere: it may have moved while we looked."""
    for _ in range(2):
        for table in (SQL.live_jobs, SQL.finished_jobs, SQL.dead_jobs):
            row = await db.row(table, lane_of(job_id), [job_id])
            if row is not None:
                return JobRow(*row)
    return None


async def change(db: Database, job_id: UUID, *, now: datetime, values: Sequence[object]) -> str | None:
    state: str | None = await db.value(SQL.change, lane_of(job_id), job_id, *values, now)
    return state


async def cancel_waiting(db: Database, lane: int, ids: Sequence[UUID], *, now: datetime, keep_until: datetime, archive: bool) -> list[UUID]:
    return [row["id"] for row in await db.rows(SQL.cancel_waiting, lane, ids, now, keep_until, archive)]


async def request_cancel(db: Database, lane: int, ids: Sequence[UUID], now: datetime) -> list[Record]:
    return await db.rows(SQL.request_cancel, lane, ids, now)


async def run_now(db: Database, job_id: UUID, now: datetime) -> bool:
    return await db.value(SQL.run_now, lane_of(job_id), job_id, now) is not None


async def due_jobs(db: Database, now: datetime, limit: int) -> list[UUID]:
    return [row["id"] for row in await db.rows(SQL.due_jobs, now, limit)]


async def next_due(db: Database) -> datetime | None:
    due: datetime | None = await db.value(SQL.next_due)
    return due


async def promote(db: Database, lane: int, ids: Sequence[UUID], now: datetime) -> list[str]:
    return [row["job_type"] for row in await db.rows(SQL.promote, lane, ids, now)]


async def take_key(on: Runs, lane: int, digest: UUID, *, fingerprint: UUID, answer: str, expires_at: datetime, now: datetime) -> bool:
    try:
        return await on.value(SQL.take_key, lane, digest, fingerprint, answer, expires_at, now) is not None
    except LockNotAvailableError:
        raise IdempotencyKeyInUse("the first call with this key has not ended yet", retry_after=1) from None


async def read_key(on: Runs, lane: int, digest: UUID) -> Record:
    row = await on.row(SQL.read_key, lane, digest)
    assert row is not None, "the key was there a moment ago, and nobody removes living ones"
    return row
