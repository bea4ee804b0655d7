"""How a job type is configured, and what is told about it."""

from app.queues.schemas import LeaseSeconds, MaxAttempts, RetryPolicy, TimeoutSeconds
from app.web.shapes import UNSET, Annotated, Instant, Meta, Raw, Sent, Told, UnsetType

PayloadSchema = Annotated[
    Raw,
    Meta(
        description="JSON Schema (an object, or true or false) that payloads are checked against at enqueue. "
        "References lead to places in the schema itself (#...); patterns have no look-around and no back-references."
    ),
]


class JobTypeRetry(RetryPolicy):
    """How jobs of a type are retried: the delays, and how often."""

    max_attempts: Annotated[MaxAttempts, Meta(description="The one beside `retry` wins if both are there.")] | UnsetType = UNSET


class JobTypeConfig(Sent):
    """What jobs of a type get when they do not say otherwise, and what their payloads must look like."""

    max_attempts: MaxAttempts | UnsetType = UNSET
    retry: JobTypeRetry | UnsetType = UNSET
    lease_seconds: LeaseSeconds | UnsetType = UNSET
    timeout_seconds: TimeoutSeconds | UnsetType = UNSET
    payload_schema: PayloadSchema | UnsetType = UNSET


class JobType(JobTypeConfig, kw_only=True):
    """A job type with its configuration. What is absent is as the queue or the settings say."""

    name: str
    created_at: Instant
    updated_at: Instant


class JobTypeList(Told):
    """Job types in the order of their names."""

    items: list[JobType]
    next_cursor: str | UnsetType = UNSET
