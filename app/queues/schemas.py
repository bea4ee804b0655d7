"""Requests and responses of queues, and the field types that queues, job types and jobs share."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import ClassVar

from app.errors import Fault
from app.http.member_rules import MemberRule, ValueOf
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

Priority = Annotated[
    int, integer(ge=-32768, le=32767, description="Jobs with a higher priority are delivered first. Default 0.")
]
MaxAttempts = Annotated[int, integer(ge=1, le=1000, description="Executions before the job becomes a dead letter.")]
LeaseSeconds = Annotated[int, integer(ge=1, le=24 * 60 * 60, description="Length of a lease in seconds.")]
TimeoutSeconds = Annotated[
    int,
    integer(ge=1, le=30 * 24 * 60 * 60, description="Maximum length of a run, even if its lease is extended."),
]
BackoffSeconds = Annotated[float, number(ge=0, le=366 * 24 * 60 * 60)]


class RetryPolicy(RequestModel):
    """How long a job waits before a retry.

    The delay before retry n is base_seconds * factor^(n-1), at most max_seconds, varied by up to
    ±`jitter`. The varied delay is at most max_seconds, too.
    """

    base_seconds: BackoffSeconds | UnsetType = UNSET
    factor: Annotated[float, number(ge=1, le=1000)] | UnsetType = UNSET
    max_seconds: BackoffSeconds | UnsetType = UNSET
    jitter: Annotated[float, number(ge=0, le=1, description="Fraction of the delay.")] | UnsetType = UNSET


class RateLimit(RequestModel):
    """At most `limit` jobs are delivered in any period of `per_seconds`."""

    limit: Annotated[int, integer(ge=1, le=1_000_000)]
    per_seconds: Annotated[int, integer(ge=1, le=7 * 24 * 60 * 60)]


class RetentionMode(StrEnum):
    """Whether finished jobs are dropped after their retention, or detached to be archived."""

    DROP = "drop"
    DETACH = "detach"


class Retention(RequestModel):
    """How long finished jobs are kept, and whether they are dropped or detached afterwards."""

    finished_seconds: Annotated[int, integer(ge=1, le=10 * 366 * 24 * 60 * 60)] | UnsetType = UNSET
    mode: RetentionMode | UnsetType = UNSET


class HealthLimits(RequestModel):
    """Limits for the verdict in the statistics: critical above a limit, warning from 80 % of it."""

    max_depth: Annotated[int, integer(ge=0, description="Ready jobs.")] | UnsetType = UNSET
    max_age_seconds: Annotated[int, integer(ge=0, description="Waiting time of the oldest ready job.")] | UnsetType = (
        UNSET
    )
    max_dead_per_hour: (
        Annotated[int, integer(ge=0, description="Jobs that became dead letters within the last hour.")] | UnsetType
    ) = UNSET


class LimitsNeedOneLane(MemberRule):
    """A queue with `max_running` or `rate` must have one lane, because both limits are counted
    within one lane."""

    def faults(self, value_of: ValueOf, pointer: str) -> Iterator[Fault]:
        lanes = value_of("lanes")
        for name in ("max_running", "rate"):
            if isinstance(lanes, int | float) and lanes > 1 and value_of(name) is not UNSET:
                detail = f"{name} requires a queue with one lane; this one has {lanes:g}"
                yield Fault(f"{pointer}/{name}", "invalid", detail)


class QueueConfig(RequestModel):
    """The configuration of a queue.

    A limit that is absent does not apply. A default that is absent comes from the settings.
    """

    rules: ClassVar[Sequence[MemberRule]] = (LimitsNeedOneLane(),)

    max_running: (
        Annotated[
            int, integer(ge=1, le=1_000_000, description="Jobs that may run at the same time. Requires one lane.")
        ]
        | UnsetType
    ) = UNSET
    max_running_per_group: (
        Annotated[
            int,
            integer(
                ge=1, le=100_000, description="Jobs of one group that may run at the same time; 1 keeps their order."
            ),
        ]
        | UnsetType
    ) = UNSET
    rate: Annotated[RateLimit, Meta(description="Requires one lane.")] | UnsetType = UNSET
    max_waiting: (
        Annotated[int, integer(ge=0, description="Jobs that may wait; further ones are rejected with 429.")] | UnsetType
    ) = UNSET
    fair: Annotated[bool, Meta(description="Whether groups are served in turn. Default false.")] | UnsetType = UNSET
    lanes: (
        Annotated[
            int,
            integer(
                ge=1,
                le=256,
                description="Number of lanes (shards). Default 1. With more, order holds only within groups.",
            ),
        ]
        | UnsetType
    ) = UNSET
    paused: (
        Annotated[
            bool,
            Meta(
                description="Whether the queue is paused. Only pause and resume change it; "
                "a different value is rejected with 422."
            ),
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
    """A queue with its configuration.

    A queue is created when it is configured, or by the first enqueue.
    """

    name: str
    lanes: Int32
    paused: bool
    created_at: Instant
    paused_at: Instant | UnsetType = UNSET
    paused_reason: str | UnsetType = UNSET


class QueueList(ResponseModel):
    """Queues, sorted by name."""

    items: list[Queue]
    next_cursor: str | UnsetType = UNSET


class PauseQueue(RequestModel):
    """Why the queue is paused, for humans. The queue and `explain` show the reason."""

    reason: Annotated[str, Meta(max_length=500)] | UnsetType = UNSET


class WaitingState(StrEnum):
    """States of waiting jobs."""

    SCHEDULED = "scheduled"
    BLOCKED = "blocked"
    READY = "ready"


class PurgeQueue(RequestModel):
    """Which waiting jobs to remove. No record of them is kept.

    Running and finished jobs are never removed.
    """

    states: Annotated[list[WaitingState], Meta(min_length=1, description="Default: all three.")] | UnsetType = UNSET
    dry_run: (
        Annotated[bool, Meta(description="Only counts the matches and changes nothing. Default true.")] | UnsetType
    ) = UNSET


class QueuePurged(ResponseModel):
    """How many jobs matched, and how many of them were removed."""

    matched: Int32
    purged: Int32
    dry_run: DryRun | UnsetType = UNSET
