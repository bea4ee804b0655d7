"""Request and response models of jobs."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import ClassVar

from pydantic import AwareDatetime, BeforeValidator

from app.errors import Fault
from app.http import instants
from app.http.member_rules import MemberRule, ValueOf, member_of
from app.http.schema_types import (
    UNSET,
    UUID,
    Annotated,
    DryRun,
    Instant,
    Int32,
    Int64,
    Meta,
    Name,
    Raw,
    RequestModel,
    ResponseModel,
    Tag,
    UnsetType,
    integer,
    number,
)
from app.jobs.bulk_filter import BulkRequest
from app.queues.schemas import MaxAttempts, Priority

Tags = Annotated[list[Tag], Meta(max_length=32, description="Labels to filter by, at most 32.")]
Metadata = Annotated[
    dict[str, Raw], Meta(max_length=64, description="Free data about the job; the broker never interprets it.")
]
MAX_CANCELLED = 10_000  # jobs in one bulk cancellation
# Parsed like the instants in bodies: pydantic alone would accept `-1` too, as seconds since the
# epoch.
QueryInstant = Annotated[AwareDatetime, BeforeValidator(instants.parse)]


class JobState(StrEnum):
    """The state of a job."""

    SCHEDULED = "scheduled"
    BLOCKED = "blocked"
    READY = "ready"
    RUNNING = "running"
    COMPLETED = "completed"
    DEAD = "dead"
    CANCELLED = "cancelled"


class Order(StrEnum):
    """The order of a list, by age of the job."""

    DESC = "desc"
    ASC = "asc"


class Progress(RequestModel):
    """The last progress report of a worker.

    For a completed job `percent` is 100, if the last report has a percentage at all.
    """

    percent: Annotated[float, number(ge=0, le=100)] | UnsetType = UNSET
    stage: Annotated[str, Meta(max_length=200)] | UnsetType = UNSET
    message: Annotated[str, Meta(max_length=1000)] | UnsetType = UNSET


class JobError(ResponseModel):
    """The error that a worker reported."""

    message: str
    error_type: str | UnsetType = UNSET
    stack: str | UnsetType = UNSET
    details: Raw | UnsetType = UNSET


class Job(ResponseModel, kw_only=True):
    """A job. `state` is one of scheduled, blocked, ready, running, completed, dead, cancelled."""

    id: UUID
    queue: str
    job_type: str
    payload: (
        Annotated[Raw, Meta(description="Any JSON, as it was sent. Absent only in lists with `payload=false`.")]
        | UnsetType
    ) = UNSET
    state: str
    state_reason: str | UnsetType = UNSET
    priority: Int32
    attempt: Int32
    max_attempts: Int32
    crashes: Int32
    deliveries: Int32
    run_at: Instant
    created_at: Instant
    started_at: Instant | UnsetType = UNSET
    finished_at: Instant | UnsetType = UNSET
    duration_ms: Int64 | UnsetType = UNSET
    worker_id: str | UnsetType = UNSET
    lease_expires_at: Instant | UnsetType = UNSET
    progress: Progress | UnsetType = UNSET
    checkpoint: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: JobError | UnsetType = UNSET
    group: str | UnsetType = UNSET
    unique_key: str | UnsetType = UNSET
    tags: list[str]
    metadata: dict[str, Raw]
    schedule: str | UnsetType = UNSET
    depends_on: list[UUID] | UnsetType = UNSET
    replayed_from: UUID | UnsetType = UNSET
    replay_count: Int32
    cancel_requested_at: Instant | UnsetType = UNSET


class JobList(ResponseModel):
    """A page of jobs, newest first by default."""

    items: list[Job]
    next_cursor: str | UnsetType = UNSET


class Attempt(ResponseModel, kw_only=True):
    """One attempt to run a job. `outcome`: running, complete, fail, expire, cancel."""

    attempt: Int32
    worker_id: str | UnsetType = UNSET
    started_at: Instant | UnsetType = UNSET
    ended_at: Instant | UnsetType = UNSET
    outcome: str
    error: JobError | UnsetType = UNSET


class AttemptList(ResponseModel):
    """A page of attempts, oldest first. Of failed attempts the last 20 are stored."""

    items: list[Attempt]
    next_cursor: str | UnsetType = UNSET


class JobPatch(RequestModel):
    """Fields that can change while a job is not running. Absent fields do not change."""

    priority: Priority | UnsetType = UNSET
    run_at: Instant | UnsetType = UNSET
    payload: Raw | UnsetType = UNSET
    max_attempts: MaxAttempts | UnsetType = UNSET
    tags: Tags | UnsetType = UNSET
    metadata: Metadata | UnsetType = UNSET


class CancelJob(RequestModel):
    """The reason of a cancellation. The broker logs it."""

    reason: Annotated[str, Meta(max_length=500)] | UnsetType = UNSET


class JobFilter(RequestModel):
    """Selects the jobs that match all given fields."""

    queue: Name | UnsetType = UNSET
    state: JobState | UnsetType = UNSET
    job_type: Name | UnsetType = UNSET
    group: Name | UnsetType = UNSET
    tag: Tag | UnsetType = UNSET
    created_after: Instant | UnsetType = UNSET
    created_before: Instant | UnsetType = UNSET


class LiveJobs(MemberRule):
    """A cancellation must not filter by a state of finished jobs, which cannot be cancelled."""

    def faults(self, value_of: ValueOf, pointer: str) -> Iterator[Fault]:
        if member_of(value_of("filter"), "state") in (JobState.COMPLETED, JobState.DEAD, JobState.CANCELLED):
            yield Fault(f"{pointer}/filter/state", "invalid", "finished jobs cannot be cancelled")


class CancelJobs(BulkRequest):
    """Selects the live jobs to cancel: by ids or by a filter. An empty filter needs `all: true`."""

    rules: ClassVar[Sequence[MemberRule]] = (*BulkRequest.rules, LiveJobs())

    filter: JobFilter | UnsetType = UNSET
    dry_run: (
        Annotated[bool, Meta(description="Only counts the matches and changes nothing. Default false.")] | UnsetType
    ) = UNSET
    limit: Annotated[int, integer(ge=1, le=MAX_CANCELLED, description="Default 1000.")] | UnsetType = UNSET


class CancelAnswer(ResponseModel):
    """How many jobs matched, and how many of them were cancelled.

    `requested`: how many running jobs were asked to stop. `remaining`: how many matching jobs this
    call left unchanged because of `limit` or `dry_run`. Counting stops at 10,001 matching jobs, one
    more than the largest `limit`, so `remaining` is 0 only if no job is left.
    """

    matched: Int32
    cancelled: Int32
    requested: Int32
    remaining: Int32
    sample: list[UUID]
    dry_run: DryRun | UnsetType = UNSET
