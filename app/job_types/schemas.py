"""How a job type is configured, and what is told about it."""

from app.http.schema_types import UNSET, Annotated, Instant, Meta, Raw, RequestModel, ResponseModel, UnsetType
from app.queues.schemas import LeaseSeconds, MaxAttempts, RetryPolicy, TimeoutSeconds

PayloadSchema = Annotated[
    Raw,
    Meta(
        description="JSON Schema, an object or a boolean: draft 2020-12 unless `$schema` names 2019-09, 7, 6 or 4. Checked when a job is "
        "enqueued. References stay within it, `format` is not checked, patterns have no look-around and no back-references."
    ),
]


class TypeRetry(RetryPolicy):
    """A retry policy that may also say how often; `max_attempts` beside it goes first."""

    max_attempts: MaxAttempts | UnsetType = UNSET


class JobTypeConfig(RequestModel):
    """What holds for jobs of a type. A job may say otherwise; what is absent here is as the queue says, or the settings."""

    max_attempts: MaxAttempts | UnsetType = UNSET
    retry: TypeRetry | UnsetType = UNSET
    lease_seconds: LeaseSeconds | UnsetType = UNSET
    timeout_seconds: TimeoutSeconds | UnsetType = UNSET
    payload_schema: PayloadSchema | UnsetType = UNSET


class JobType(JobTypeConfig, kw_only=True, forbid_unknown_fields=False):
    """A job type with its configuration, as it was put."""

    name: str
    created_at: Instant
    updated_at: Instant


class JobTypeList(ResponseModel):
    """Job types in the order of their names."""

    items: list[JobType]
    next_cursor: str | UnsetType = UNSET
