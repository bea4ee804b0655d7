"""Requests and responses of job types."""

from app.http.schema_types import UNSET, Annotated, Instant, Meta, Raw, RequestModel, ResponseModel, UnsetType
from app.queues.schemas import LeaseSeconds, MaxAttempts, RetryPolicy, TimeoutSeconds

PayloadSchema = Annotated[
    Raw,
    Meta(
        description="JSON Schema (an object or a boolean) for payloads, validated when a job is enqueued. "
        "Draft 2020-12, unless `$schema` names 2019-09, 7, 6 or 4. The only references are `$ref` to a definition, "
        "without recursion; anchors, `unevaluatedProperties` and `unevaluatedItems` are not supported, `format` is not "
        "validated, and patterns support neither look-around nor back-references. A schema that could take too long is "
        "rejected."
    ),
]


class TypeRetry(RetryPolicy):
    """A retry policy with an optional `max_attempts`.

    If the job type itself has a `max_attempts`, that value takes precedence.
    """

    max_attempts: MaxAttempts | UnsetType = UNSET


class JobTypeConfig(RequestModel):
    """Defaults for the jobs of a type.

    The job's own values take precedence; absent members fall back to the queue, then the settings.
    """

    max_attempts: MaxAttempts | UnsetType = UNSET
    retry: TypeRetry | UnsetType = UNSET
    lease_seconds: LeaseSeconds | UnsetType = UNSET
    timeout_seconds: TimeoutSeconds | UnsetType = UNSET
    payload_schema: PayloadSchema | UnsetType = UNSET


class JobType(JobTypeConfig, kw_only=True, forbid_unknown_fields=False):
    """A job type with its configuration."""

    name: str
    created_at: Instant
    updated_at: Instant


class JobTypeList(ResponseModel):
    """Job types, sorted by name."""

    items: list[JobType]
    next_cursor: str | UnsetType = UNSET
