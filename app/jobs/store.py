"""Runs jobs.sql, and converts its rows to jobs."""

from collections.abc import Sequence
from datetime import datetime
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from asyncpg import Record

from app.db.lanes import created_at, lane_of
from app.db.pool import Database, Executor, to_columns
from app.db.queries import load_queries
from app.http.schema_types import UNSET, Raw, UnsetType, raw_or_unset, unset_if_none
from app.jobs.schemas import Attempt, Job, Progress
from app.slices import by_size

SQL = load_queries(__file__)

_progress = msgspec.json.Decoder(Progress)
_attempt = msgspec.json.Decoder(Attempt)
_tags = msgspec.json.Decoder(list[str])
_metadata = msgspec.json.Decoder(dict[str, Raw])


class NewJob(NamedTuple):
    """The parameters of the statement `enqueue`, in its order."""

    id: UUID
    state: str
    reason: str | None
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
    expires_at: datetime | None = None
    timeout_seconds: int | None = None
    unique_key: str | None = None
    schedule: str | None = None
    on_parent_failure: str | None = None
    awaited: bool | None = None
    # Array literal, because unnest accepts no arrays of different lengths.
    awaits: str | None = None
    depends_on: str | None = None
    # Only of a job that is stored as already leased to a waiting poller; see
    # app/matching/sync_match.py.
    worker_id: str | None = None
    started_at: datetime | None = None
    lease_token: UUID | None = None
    lease_expires_at: datetime | None = None
    deadline_at: datetime | None = None


# The driver encodes a statement in one go: 2 to 4 ms for each megabyte, during which no other
# request is served.
MAX_STATEMENT_BYTES = 256 * 1024
_payload_of, _metadata_of = attrgetter("payload"), attrgetter("metadata")
_COLLAPSIBLE_COLUMNS = [
    NewJob._fields.index(name) for name in ("state", "run_at", "priority", "max_attempts", "job_type")
]


class UpdatedRow(NamedTuple):
    """A waiting job after an update."""

    state: str
    job_type: str
    group_key: str | None


class RemovedJobRow(NamedTuple):
    """A waiting job that was removed. `awaited`: other jobs depend on it."""

    id: UUID
    group_key: str | None
    awaited: bool


class JobRow(NamedTuple):
    """A job from any of the three tables: live, finished or dead."""

    lane: int
    id: UUID
    job_type: str
    payload: str | None  # None if the query leaves it out
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
    unique_key: str | None
    schedule: str | None
    depends_on: list[UUID] | None

    def to_response(self, queue: str) -> Job:
        return Job(
            id=self.id,
            queue=queue,
            job_type=self.job_type,
            payload=raw_or_unset(self.payload),
            state=public_state(self.state),
            state_reason=unset_if_none(self.state_reason),
            priority=self.priority,
            attempt=self.attempt,
            max_attempts=self.max_attempts,
            crashes=self.crashes,
            deliveries=self.deliveries,
            run_at=self.run_at,
            created_at=created_at(self.id),
            started_at=unset_if_none(self.started_at),
            finished_at=unset_if_none(self.finished_at),
            duration_ms=self._duration_ms(),
            worker_id=unset_if_none(self.worker_id),
            lease_expires_at=unset_if_none(self.lease_expires_at),
            progress=self._progress(),
            checkpoint=raw_or_unset(self.checkpoint),
            result=raw_or_unset(self.result),
            error=UNSET if self.state == "completed" else self._last_error(),
            group=unset_if_none(self.group_key),
            unique_key=unset_if_none(self.unique_key),
            schedule=unset_if_none(self.schedule),
            depends_on=unset_if_none(self.depends_on),
            tags=tags_of(self.tags),
            metadata=metadata_of(self.metadata),
            replayed_from=unset_if_none(self.replayed_from),
            replay_count=self.replay_count,
            cancel_requested_at=unset_if_none(self.cancel_requested_at),
        )

    def _progress(self) -> Progress | UnsetType:
        """The last report of the worker.

        A completed job has 100 percent, if its worker ever reported one.
        """
        if self.progress is None:
            return UNSET
        progress = _progress.decode(self.progress)
        if self.state != "completed" or progress.percent is UNSET:
            return progress
        return msgspec.structs.replace(progress, percent=100.0)

    def _duration_ms(self) -> int | UnsetType:
        if self.started_at is None or self.finished_at is None:
            return UNSET
        return max(0, round((self.finished_at - self.started_at).total_seconds() * 1000))

    def _last_error(self) -> Any:
        return _attempt.decode(self.attempts[-1]).error if self.attempts else UNSET

    def all_attempts(self) -> list[Attempt]:
        """The stored failed attempts, then the running or completed attempt from the row itself."""
        failed = [_attempt.decode(text) for text in self.attempts or []]
        outcomes = {"running": "running", "completed": "complete"}
        if self.state not in outcomes:
            return failed
        return [
            *failed,
            Attempt(
                attempt=self.attempt,
                worker_id=unset_if_none(self.worker_id),
                started_at=unset_if_none(self.started_at),
                ended_at=unset_if_none(self.finished_at),
                outcome=outcomes[self.state],
            ),
        ]


def public_state(state: str) -> str:
    """The state that the API shows.

    Admission is internal: a pending job (`parked`) is shown as ready.
    """
    return "ready" if state == "parked" else state


def to_array_text(ids: Sequence[UUID]) -> str | None:
    return "{" + ",".join(map(str, ids)) + "}" if ids else None


def tags_of(text: str | None) -> list[str]:
    return _tags.decode(text) if text else []


def metadata_of(text: str | None) -> dict[str, Raw]:
    return _metadata.decode(text) if text else {}


async def enqueue(db: Executor, lane: int, jobs: Sequence[NewJob]) -> None:
    columns = to_columns(jobs)
    for index in _COLLAPSIBLE_COLUMNS:
        columns[index] = _collapse(columns[index])
    await db.rows(SQL.enqueue, lane, *columns)


async def enqueue_all(transaction: Executor, lane: int, jobs: Sequence[NewJob]) -> None:
    """Inserts jobs of any size: several statements, which the transaction makes atomic."""
    for statement_jobs in by_size(jobs, _size, MAX_STATEMENT_BYTES):
        await enqueue(transaction, lane, statement_jobs)


def fit_into_statement(jobs: Sequence[NewJob]) -> bool:
    """Whether jobs without parents fit. Takes 0.1 µs a job; `_size` takes twice as long."""
    texts = chain(map(_payload_of, jobs), filter(None, map(_metadata_of, jobs)))
    return sum(map(len, texts)) <= MAX_STATEMENT_BYTES


def _size(job: NewJob) -> int:
    """The size of the large columns. A job may have a thousand parents, and its row contains them
    twice."""
    return len(job.payload) + len(job.metadata or "") + 2 * len(job.depends_on or "")


def _collapse(column: Sequence[object] | None) -> Sequence[object] | None:
    """Keeps only the first value if all are equal, as they mostly are in a batch.

    The driver takes 0.5 to 1.8 µs to encode a value.
    """
    return column[:1] if column and column.count(column[0]) == len(column) else column


async def live_jobs(db: Executor, lane: int, ids: Sequence[UUID]) -> list[JobRow]:
    return [JobRow(*row) for row in await db.rows(SQL.live_jobs, lane, ids)]


async def live_ids(db: Executor, lane: int, ids: Sequence[UUID]) -> set[UUID]:
    return {row["id"] for row in await db.rows(SQL.live_ids, lane, ids)}


async def dead_ids(db: Executor, lane: int, ids: Sequence[UUID]) -> set[UUID]:
    return {row["id"] for row in await db.rows(SQL.dead_ids, lane, ids)}


async def find(db: Executor, job_id: UUID, kept_at: datetime) -> JobRow | None:
    """Searches live, then finished, then dead jobs.

    Searches twice, because a job may move between the tables during the first search. A finished
    job whose retention has ended by `kept_at` is not found.
    """
    key = (lane_of(job_id), [job_id])
    for _ in range(2):
        for query, args in ((SQL.live_jobs, key), (SQL.finished_jobs, (*key, kept_at)), (SQL.dead_jobs, key)):
            row = await db.row(query, *args)
            if row is not None:
                return JobRow(*row)
    return None


async def update_job(
    db: Database, job_id: UUID, *, now: datetime, values: Sequence[object], held_groups: Sequence[str] | None
) -> UpdatedRow | None:
    row = await db.row(SQL.update_job, lane_of(job_id), job_id, *values, now, held_groups)
    return UpdatedRow(*row) if row else None


async def replace_waiting(
    db: Executor, job_id: UUID, job: NewJob, *, now: datetime, held_groups: Sequence[str] | None
) -> UpdatedRow | None:
    body = (
        job.priority,
        job.max_attempts,
        job.job_type,
        job.lease_seconds,
        job.retry,
        job.tags,
        job.metadata,
        job.payload,
    )
    limits_and_trace = (job.expires_at, job.timeout_seconds, job.traceparent, job.tracestate)
    row = await db.row(
        SQL.replace_waiting, lane_of(job_id), job_id, job.run_at, now, held_groups, *body, *limits_and_trace
    )
    return UpdatedRow(*row) if row else None


async def cancel_waiting(
    db: Executor, lane: int, ids: Sequence[UUID], *, now: datetime, kept: tuple[datetime, bool], reason: str
) -> list[RemovedJobRow]:
    """`kept`: until when the finished jobs are stored, and whether they go to the archive."""
    return [RemovedJobRow(*row) for row in await db.rows(SQL.cancel_waiting, lane, ids, now, *kept, reason)]


async def kill_unstarted(db: Database, lane: int, ids: Sequence[UUID], now: datetime) -> list[RemovedJobRow]:
    return [RemovedJobRow(*row) for row in await db.rows(SQL.kill_unstarted, lane, ids, now)]


async def past_start_deadline(db: Database, now: datetime, limit: int) -> list[UUID]:
    return [row["id"] for row in await db.rows(SQL.past_start_deadline, now, limit)]


async def request_cancel(db: Database, lane: int, ids: Sequence[UUID], now: datetime) -> list[Record]:
    return await db.rows(SQL.request_cancel, lane, ids, now)


async def run_now(db: Database, job_id: UUID, now: datetime, held_groups: Sequence[str] | None) -> UpdatedRow | None:
    row = await db.row(SQL.run_now, lane_of(job_id), job_id, now, held_groups)
    return UpdatedRow(*row) if row else None


async def due_jobs(db: Database, now: datetime, limit: int) -> list[UUID]:
    return [row["id"] for row in await db.rows(SQL.due_jobs, now, limit)]


async def next_due(db: Database) -> datetime | None:
    due: datetime | None = await db.value(SQL.next_due)
    return due


async def schedule_due(
    db: Database, lane: int, ids: Sequence[UUID], now: datetime, held_groups: Sequence[str] | None
) -> list[UpdatedRow]:
    return [UpdatedRow(*row) for row in await db.rows(SQL.schedule_due, lane, ids, now, held_groups)]


async def count_waiting(db: Executor, lanes: Sequence[int]) -> int:
    waiting: int = await db.value(SQL.count_waiting, lanes)
    return waiting
