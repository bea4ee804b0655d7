"""Requests and responses of dead letters."""

from enum import StrEnum

from app.http.schema_types import (
    UNSET,
    UUID,
    Annotated,
    DryRun,
    Instant,
    Int32,
    Meta,
    Name,
    Raw,
    RequestModel,
    ResponseModel,
    UnsetType,
    integer,
)
from app.jobs.bulk_filter import BulkRequest
from app.jobs.schemas import Job
from app.queues.schemas import MaxAttempts, Priority

Fingerprint = Annotated[str, Meta(max_length=250)]


class GroupField(StrEnum):
    """A field by which dead letters are grouped."""

    QUEUE = "queue"
    JOB_TYPE = "job_type"
    FINGERPRINT = "fingerprint"


class DeadLetter(Job, kw_only=True):
    """A dead job, with the time at which it became dead and the fingerprint of its last error.

    Errors that differ only in numbers, ids and quoted strings share a fingerprint.
    """

    dead_at: Instant
    fingerprint: str


class DeadLetterList(ResponseModel):
    """Dead letters, latest first."""

    items: list[DeadLetter]
    next_cursor: str | UnsetType = UNSET


class DeadLetterGroup(ResponseModel, kw_only=True):
    """A group of dead letters that have the same values in the requested fields.

    This is not the `group` of a job. `sample` is the id of one dead letter of the group.
    """

    queue: str | UnsetType = UNSET
    job_type: str | UnsetType = UNSET
    fingerprint: str | UnsetType = UNSET
    count: Int32
    first_at: Instant
    last_at: Instant
    sample: UUID


class DeadLetterGroups(ResponseModel):
    """Groups of dead letters, largest first."""

    items: list[DeadLetterGroup]
    next_cursor: str | UnsetType = UNSET


class DeadLetterFilter(RequestModel):
    """Selects dead letters that match all given members."""

    queue: Name | UnsetType = UNSET
    job_type: Name | UnsetType = UNSET
    reason: Name | UnsetType = UNSET
    error_type: Annotated[str, Meta(max_length=200)] | UnsetType = UNSET
    fingerprint: Fingerprint | UnsetType = UNSET
    dead_after: Instant | UnsetType = UNSET
    dead_before: Instant | UnsetType = UNSET


class ReplayOverrides(RequestModel):
    """Values that replace those of the replayed jobs.

    With `queue`, new jobs are created in that queue, with the old ids as `replayed_from`.
    """

    queue: Name | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    max_attempts: MaxAttempts | UnsetType = UNSET
    payload_merge: (
        Annotated[dict[str, Raw], Meta(description="JSON merge patch (RFC 7396) for the payload.")] | UnsetType
    ) = UNSET


class ReplayDeadLetters(BulkRequest):
    """Selects the dead letters to replay: by ids or a filter. An empty filter needs `all: true`."""

    filter: DeadLetterFilter | UnsetType = UNSET
    dry_run: (
        Annotated[bool, Meta(description="Only counts the matches and changes nothing. Default false.")] | UnsetType
    ) = UNSET
    limit: Annotated[int, integer(ge=1, le=10_000, description="Default 1000.")] | UnsetType = UNSET
    spread_seconds: (
        Annotated[int, integer(ge=0, le=86_400, description="Spread the jobs evenly over this time.")] | UnsetType
    ) = UNSET
    overrides: ReplayOverrides | UnsetType = UNSET


class ReplayAnswer(ResponseModel):
    """How many dead letters matched, how many were replayed, and how many remain.

    `sample` has some ids: of the replayed jobs, or with `dry_run` of the matching ones.
    """

    matched: Int32
    replayed: Int32
    remaining: Int32
    sample: list[UUID]
    dry_run: DryRun | UnsetType = UNSET


class PurgeDeadLetters(BulkRequest):
    """Selects the dead letters to delete: by ids or a filter. An empty filter needs `all: true`.

    Nothing is deleted unless `dry_run` is false.
    """

    filter: DeadLetterFilter | UnsetType = UNSET
    dry_run: (
        Annotated[bool, Meta(description="Only counts the matches and changes nothing. Default true.")] | UnsetType
    ) = UNSET


class PurgeAnswer(ResponseModel):
    """How many dead letters matched, and how many were deleted."""

    matched: Int32
    purged: Int32
    dry_run: DryRun | UnsetType = UNSET
