"""Request and response models of jobs."""

from enum import StrEnum
from typing import Any, ClassVar

from pydantic import AwareDatetime, BeforeValidator

from app.http import instants
from app.http.problems import Problem
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
    not_both,
    number,
)
from app.jobs.bulk_filter import All
from app.queues.schemas import LeaseSeconds, MaxAttempts, Priority, RetryPolicy, TimeoutSeconds

DelaySeconds = Annotated[int, integer(ge=0, description="Seconds from now.")]
Tags = Annotated[list[Tag], Meta(max_length=32, description="Labels to filter by, at most 32.")]
Metadata = Annotated[
    dict[str, Raw], Meta(max_length=64, description="Free data about the job; the broker never interprets it.")
]
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


class OnDuplicate(StrEnum):
    """What happens if another job already has the unique key."""

    RETURN_EXISTING = "return_existing"
    REJECT = "reject"
    REPLACE = "replace"


class OnParentFailure(StrEnum):
    """What happens if a job that this one depends on dies or is cancelled."""

    CANCEL = "cancel"
    RUN = "run"


class Unique(RequestModel):
    """At most one job of the queue has this key: while it waits or runs, or for `for_seconds`."""

    key: Annotated[str, Meta(min_length=1, max_length=200)]
    for_seconds: (
        Annotated[
            int, integer(ge=1, description="Seconds from the creation of the job. Ends early if the job is removed.")
        ]
        | UnsetType
    ) = UNSET
    on_duplicate: OnDuplicate | UnsetType = UNSET


class JobCreate(RequestModel):
    """A job to enqueue. Only `job_type` is required."""

    json_schema: ClassVar[dict[str, Any]] = {
        **not_both("run_at", "delay_seconds"),
        "dependentRequired": {"on_parent_failure": ["depends_on"]},
    }

    job_type: Name
    queue: Name | UnsetType = UNSET
    payload: Annotated[Raw, Meta(description="Any JSON, stored as sent. Absent means `{}`.")] | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    run_at: Annotated[Instant, Meta(description="Earliest start. Not together with delay_seconds.")] | UnsetType = UNSET
    delay_seconds: DelaySeconds | UnsetType = UNSET
    group: Name | UnsetType = UNSET
    max_attempts: MaxAttempts | UnsetType = UNSET
    retry: RetryPolicy | UnsetType = UNSET
    lease_seconds: LeaseSeconds | UnsetType = UNSET
    timeout_seconds: TimeoutSeconds | UnsetType = UNSET
    expires_at: (
        Annotated[
            Instant,
            Meta(description="Start deadline: a job that has not started by then is dead, with reason `expired`."),
        ]
        | UnsetType
    ) = UNSET
    unique: Unique | UnsetType = UNSET
    depends_on: (
        Annotated[list[Name], Meta(max_length=1000, description="Ids of jobs, or refs of jobs in the same batch.")]
        | UnsetType
    ) = UNSET
    on_parent_failure: OnParentFailure | UnsetType = UNSET
    tags: Tags | UnsetType = UNSET
    metadata: Metadata | UnsetType = UNSET


class BatchJob(JobCreate):
    """A job in a batch."""

    ref: Name | UnsetType = UNSET


class BatchOptions(RequestModel):
    """Options of a batch."""

    atomic: Annotated[bool, Meta(description="Default true: if one job is invalid, nothing is stored.")] | UnsetType = (
        UNSET
    )


class JobBatch(BatchOptions, kw_only=True):
    """Up to 1000 jobs. All or nothing, unless `atomic` is false."""

    jobs: Annotated[list[BatchJob], Meta(description="At least one.")]


class UnreadBatch(BatchOptions, kw_only=True):
    """A `JobBatch` that is decoded job by job, so that each invalid job gets its own pointer."""

    jobs: list[Raw]


class Progress(RequestModel):
    """The last progress report of a worker.

    A completed job has `percent` 100 if its worker ever sent one.
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


class BatchResult(ResponseModel):
    """The result of one job of a batch. `status`: created, duplicate, rejected."""

    index: Int32
    status: str
    job_id: UUID | UnsetType = UNSET
    problem: Problem | UnsetType = UNSET


class BatchAnswer(ResponseModel):
    """The results of a batch, in the order of the request."""

    results: list[BatchResult]
    created: Int32
    duplicates: Int32
    rejected: Int32 | UnsetType = UNSET


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
    """Selects live jobs that match all given fields."""

    queue: Name | UnsetType = UNSET
    state: JobState | UnsetType = UNSET
    job_type: Name | UnsetType = UNSET
    group: Name | UnsetType = UNSET
    tag: Tag | UnsetType = UNSET
    created_after: Instant | UnsetType = UNSET
    created_before: Instant | UnsetType = UNSET


class CancelJobs(RequestModel):
    """Either ids or a filter. An empty filter needs `all: true`."""

    json_schema: ClassVar[dict[str, Any]] = not_both("ids", "filter")

    ids: Annotated[list[UUID], Meta(max_length=1000)] | UnsetType = UNSET
    filter: JobFilter | UnsetType = UNSET
    all: All | UnsetType = UNSET
    dry_run: (
        Annotated[bool, Meta(description="Only counts the matches and changes nothing. Default false.")] | UnsetType
    ) = UNSET
    limit: Annotated[int, integer(ge=1, le=10_000, description="Default 1000.")] | UnsetType = UNSET


class CancelAnswer(ResponseModel):
    """How many jobs matched, were cancelled, and (running ones) were asked to stop."""

    matched: Int32
    cancelled: Int32
    requested: Int32
    sample: list[UUID]
    dry_run: DryRun | UnsetType = UNSET
