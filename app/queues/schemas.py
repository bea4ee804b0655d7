"""How a queue is configured, and what is told about it. Here too: the settings that queues, job types and jobs share."""

from enum import StrEnum

from app.http.schema_types import (
    UNSET,
    Annotated,
    DryRun,
    Instant,
    Int32,
    Meta,
    RequestModel,
    ResponseModel,
    UnsetType,
    integer,
    number,
)

Priority = Annotated[int, integer(ge=-32768, le=32767, description="Higher goes first. Default 0.")]
MaxAttempts = Annotated[int, integer(ge=1, le=1000, description="Executions before the job is dead.")]
LeaseSeconds = Annotated[int, integer(ge=1, le=24 * 60 * 60, description="Lease in seconds.")]
TimeoutSeconds = Annotated[
    int, integer(ge=1, le=30 * 24 * 60 * 60, description="Longest run, however often it is extended.")
]
BackoffSeconds = Annotated[float, number(ge=0, le=366 * 24 * 60 * 60)]
MOST = 2**31 - 1


class RetryPolicy(RequestModel):
    """Delay before retry n is base_seconds * factor^(n-1), at most max_seconds, stretched or shortened by up to `jitter`."""

    base_seconds: BackoffSeconds | UnsetType = UNSET
    factor: Annotated[float, number(ge=1, le=1000)] | UnsetType = UNSET
    max_seconds: BackoffSeconds | UnsetType = UNSET
    jitter: Annotated[float, number(ge=0, le=1, description="Share of the delay.")] | UnsetType = UNSET


class RateLimit(RequestModel):
    """At most `limit` jobs are handed out in any `per_seconds`."""

    limit: Annotated[int, integer(ge=1, le=1_000_000)]
    per_seconds: Annotated[int, integer(ge=1, le=7 * 24 * 60 * 60)]


class RetentionMode(StrEnum):
    """What becomes of finished jobs whose time is over: gone, or detached for an archive."""

    DROP = "drop"
    DETACH = "detach"


class Retention(RequestModel):
    """How long finished jobs are kept, and what becomes of them then."""

    finished_seconds: Annotated[int, integer(ge=1, le=10 * 366 * 24 * 60 * 60)] | UnsetType = UNSET
    mode: RetentionMode | UnsetType = UNSET


class HealthLimits(RequestModel):
    """Above a limit the verdict is critical, from 80 % of it on a warning."""

    max_depth: Annotated[int, integer(ge=0, le=MOST, description="Ready jobs.")] | UnsetType = UNSET
    max_age_seconds: (
        Annotated[int, integer(ge=0, le=MOST, description="Age of the oldest job that could run.")] | UnsetType
    ) = UNSET
    max_dead_per_hour: (
        Annotated[int, integer(ge=0, le=MOST, description="Jobs that died within the last hour.")] | UnsetType
    ) = UNSET


class QueueConfig(RequestModel):
    """The rules of a queue. What is absent is not limited, or as the settings say."""

    max_running: (
        Annotated[int, integer(ge=1, le=1_000_000, description="Jobs that run at once. Needs one lane.")] | UnsetType
    ) = UNSET
    max_running_per_group: (
        Annotated[
            int, integer(ge=1, le=100_000, description="Jobs of one group that run at once; 1 keeps their order.")
        ]
        | UnsetType
    ) = UNSET
    rate: Annotated[RateLimit, Meta(description="Needs one lane.")] | UnsetType = UNSET
    max_waiting: (
        Annotated[int, integer(ge=0, le=MOST, description="Jobs that may wait; more are refused with 429.")] | UnsetType
    ) = UNSET
    fair: Annotated[bool, Meta(description="Groups take turns. Default false.")] | UnsetType = UNSET
    lanes: (
        Annotated[int, integer(ge=1, le=256, description="Default 1. With more, order holds in groups only.")]
        | UnsetType
    ) = UNSET
    paused: (
        Annotated[
            bool,
            Meta(description="Whether the queue is paused. Only pause and resume change it: another value is 422."),
        ]
        | UnsetType
    ) = UNSET
    default_priority: Priority | UnsetType = UNSET
    default_lease_seconds: LeaseSeconds | UnsetType = UNSET
    default_retry: RetryPolicy | UnsetType = UNSET
    default_max_attempts: MaxAttempts | UnsetType = UNSET
    retention: Retention | UnsetType = UNSET
    health: HealthLimits | UnsetType = UNSET


class Queue(QueueConfig, kw_only=True, forbid_unknown_fields=False):
    """A queue with its configuration. It comes into being when it is configured, or on first enqueue."""

    name: str
    lanes: Int32
    paused: bool
    created_at: Instant
    paused_at: Instant | UnsetType = UNSET
    paused_reason: str | UnsetType = UNSET


class QueueList(ResponseModel):
    """Queues in the order of their names."""

    items: list[Queue]
    next_cursor: str | UnsetType = UNSET


class PauseQueue(RequestModel):
    """Why, for people: it is told with the queue and by `explain`."""

    reason: Annotated[str, Meta(max_length=500)] | UnsetType = UNSET


class WaitingState(StrEnum):
    """States of jobs that wait."""

    SCHEDULED = "scheduled"
    BLOCKED = "blocked"
    READY = "ready"


class PurgeQueue(RequestModel):
    """Which jobs to remove without a trace. Running ones and finished ones are never among them."""

    states: Annotated[list[WaitingState], Meta(min_length=1, description="Default: all three.")] | UnsetType = UNSET
    dry_run: (
        Annotated[bool, Meta(description="Only counts the matches and changes nothing. Default true.")] | UnsetType
    ) = UNSET


class QueuePurged(ResponseModel):
    """How many jobs matched, and how many of them are gone."""

    matched: Int32
    purged: Int32
    dry_run: DryRun | UnsetType = UNSET
