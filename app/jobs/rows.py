"""Job rows, as statements insert, return or claim them, and their conversion to responses."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from app.db.lanes import created_at
from app.http.schema_types import UNSET, Raw, UnsetType, raw_or_unset, unset_if_none
from app.jobs.schemas import Attempt, Job, Progress

_progress = msgspec.json.Decoder(Progress)
_attempt = msgspec.json.Decoder(Attempt)
_tags = msgspec.json.Decoder(list[str])
_metadata = msgspec.json.Decoder(dict[str, Raw])


class NewJob(NamedTuple):
    """A new job. Its fields are the parameters of the statement `enqueue` (jobs.sql)."""

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
    has_dependents: bool | None = None
    # Text of an array literal, because `unnest` accepts no array of arrays with different lengths.
    waiting_for: str | None = None
    depends_on: str | None = None
    # Set only for a job that is stored as already leased to a waiting poller; see
    # app/enqueue/insert_batcher.py.
    worker_id: str | None = None
    started_at: datetime | None = None
    lease_token: UUID | None = None
    lease_expires_at: datetime | None = None
    deadline_at: datetime | None = None

    @property
    def admission(self) -> None:
        """None: a new job is not admitted yet."""


class JobChanges(NamedTuple):
    """New values for a waiting job. None means unchanged."""

    priority: int | None
    run_at: datetime | None
    payload: str | None
    max_attempts: int | None
    tags: str | None
    metadata: str | None


class ClaimedRow(NamedTuple):
    """A job as a claim returns it."""

    lane: int
    id: UUID
    job_type: str
    payload: str
    attempt: int
    max_attempts: int
    deliveries: int
    lease_token: UUID
    started_epoch: float  # when the lease began, in seconds since 1970
    lease_seconds: float  # length of the lease, unless a heartbeat extends it
    waited_seconds: float | None  # from run_at; None after a crash and in a repeated claim
    priority: int
    checkpoint: str | None
    progress: str | None
    group_key: str | None
    tags: str | None
    metadata: str | None
    traceparent: str | None
    tracestate: str | None
    deadline_at: datetime | None
    depends_on: list[UUID] | None
    admission: int | None
    slice_number: int  # number of the poll slice that gets this job, counted from 1
    size: int  # bytes that the job takes in a response

    @property
    def state(self) -> str:
        return "running"

    @property
    def run_at(self) -> None:
        """None, because a claim reads neither `run_at` nor `has_dependents`."""

    @property
    def has_dependents(self) -> None: ...


class JobRow(NamedTuple):
    """A job from one of the tables `jobs`, `finished_jobs` and `dead_letters`."""

    lane: int
    id: UUID
    job_type: str
    payload: str | None  # None if the query leaves it out
    priority: int
    attempt: int
    max_attempts: int
    crashes: int
    deliveries: int
    run_at: datetime
    started_at: datetime | None
    worker_id: str | None
    progress: str | None
    checkpoint: str | None
    attempts: list[str] | None
    group_key: str | None
    tags: str | None
    metadata: str | None
    replayed_from: UUID | None
    replay_count: int
    unique_key: str | None
    schedule: str | None
    depends_on: list[UUID] | None
    # Each of these columns is missing in at least one of the three tables.
    state: str
    state_reason: str | None
    finished_at: datetime | None
    lease_expires_at: datetime | None
    result: str | None
    cancel_requested_at: datetime | None

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
        """Returns the last progress report of the worker.

        For a completed job `percent` is 100, if the last report has a percentage at all.
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
        """Returns the stored attempts, oldest first, then the running or completed attempt.

        Only attempts that did not complete are stored. The running or completed attempt is built
        from the columns of the row.
        """
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
    """Returns the state that the API shows.

    Admission is internal: a pending job is shown as ready.
    """
    return "ready" if state == "pending" else state


def to_array_text(ids: Sequence[UUID]) -> str | None:
    """Formats ids as an array literal of Postgres. Returns None, for NULL, if there are no ids."""
    return "{" + ",".join(map(str, ids)) + "}" if ids else None


def tags_of(text: str | None) -> list[str]:
    return _tags.decode(text) if text else []


def metadata_of(text: str | None) -> dict[str, Raw]:
    return _metadata.decode(text) if text else {}
