"""Requests and responses of workers."""

from collections.abc import Sequence
from enum import StrEnum
from typing import ClassVar

from app.http.member_rules import MemberRule, RequiredForValue
from app.http.schema_types import (
    UNSET,
    UUID,
    Annotated,
    Instant,
    Int32,
    Meta,
    Name,
    Raw,
    RequestModel,
    ResponseModel,
    UnsetType,
    integer,
    number,
)
from app.jobs.schemas import Progress
from app.queues.schemas import LeaseSeconds

# Tokens are opaque. An unknown token is a lost lease and not an error, so any string is valid.
Token = str
Seconds = Annotated[int, integer(ge=0, le=366 * 24 * 60 * 60)]


class Outcome(StrEnum):
    """How a worker settles a lease."""

    COMPLETE = "complete"
    FAIL = "fail"
    SNOOZE = "snooze"
    RELEASE = "release"


class Scope(StrEnum):
    """What a failure applies to: the job alone, or its whole group."""

    JOB = "job"
    GROUP = "group"


class SentError(RequestModel):
    """The error of a failed run. Long texts are cut to 8 KiB; NUL characters are removed."""

    message: str
    error_type: str | UnsetType = UNSET
    stack: str | UnsetType = UNSET
    details: Annotated[Raw, Meta(description="Any JSON.")] | UnsetType = UNSET


class Settlement(RequestModel):
    """The end of one lease. Which fields apply depends on `outcome`."""

    rules: ClassVar[Sequence[MemberRule]] = (RequiredForValue("outcome", {"fail": "error", "snooze": "delay_seconds"}),)

    job_id: UUID
    lease_token: Token
    outcome: Outcome
    result: Annotated[Raw, Meta(description="For `complete`: any JSON.")] | UnsetType = UNSET
    error: SentError | UnsetType = UNSET
    retryable: (
        Annotated[bool, Meta(description="For `fail`: default true; false makes the job dead immediately.")] | UnsetType
    ) = UNSET
    retry_after_seconds: Seconds | UnsetType = UNSET
    scope: Scope | UnsetType = UNSET
    delay_seconds: Seconds | UnsetType = UNSET
    checkpoint: Annotated[Raw, Meta(description="Any JSON; returned by the next claim of the job.")] | UnsetType = UNSET


class Complete(RequestModel):
    """Completes a job."""

    lease_token: Token
    result: Annotated[Raw, Meta(description="Any JSON.")] | UnsetType = UNSET


class Fail(RequestModel):
    """Fails a job. The job is retried after a back-off until its attempts are exhausted."""

    lease_token: Token
    error: SentError
    retryable: Annotated[bool, Meta(description="Default true; false makes the job dead immediately.")] | UnsetType = (
        UNSET
    )
    retry_after_seconds: Seconds | UnsetType = UNSET
    scope: Scope | UnsetType = UNSET


class Snooze(RequestModel):
    """Snoozes a job: it runs again later. The run does not count as an attempt."""

    lease_token: Token
    delay_seconds: Seconds
    checkpoint: Annotated[Raw, Meta(description="Any JSON; returned by the next claim of the job.")] | UnsetType = UNSET


class Release(RequestModel):
    """Releases a job: any worker may claim it now. The run does not count as an attempt."""

    lease_token: Token


class SettleResult(ResponseModel):
    """The result of a settlement. `status`: settled, already_settled, lease_lost, not_found."""

    job_id: UUID
    status: str
    state: str | UnsetType = UNSET
    attempt: Int32 | UnsetType = UNSET
    run_at: Instant | UnsetType = UNSET


class SettleJobs(RequestModel):
    """Settlements of any outcome, at most `max_settlements`."""

    items: list[Settlement]


class SettleAnswer(ResponseModel):
    """The result of each settlement, in the order of the request."""

    results: list[SettleResult]
    settled: Int32
    lost: Int32


class ClaimJobs(RequestModel):
    """A claim. Every field has a default."""

    queues: (
        Annotated[
            list[Name], Meta(min_length=1, max_length=100, description='In order of preference. Default ["default"].')
        ]
        | UnsetType
    ) = UNSET
    job_types: (
        Annotated[list[Name], Meta(min_length=1, max_length=100, description="Claim only jobs of these types.")]
        | UnsetType
    ) = UNSET
    max_jobs: Annotated[int, integer(ge=1, le=1000, description="Default 1; at most `max_claim_jobs`.")] | UnsetType = (
        UNSET
    )
    wait_seconds: (
        Annotated[float, number(ge=0, description="Default 0. Clamped to the maximum of the server.")] | UnsetType
    ) = UNSET
    lease_seconds: LeaseSeconds | UnsetType = UNSET
    worker_id: Name | UnsetType = UNSET
    settle: list[Settlement] | UnsetType = UNSET
    wait_after_settle: (
        Annotated[
            bool,
            Meta(
                description="Whether a claim with `settle` waits for jobs, too. Default false: it answers at once. "
                "The settlements are committed before the wait; their results are returned with the jobs."
            ),
        ]
        | UnsetType
    ) = UNSET
    parent_results: (
        Annotated[bool, Meta(description="Whether to include the results of the jobs that each job depends on.")]
        | UnsetType
    ) = UNSET


class ParentResult(ResponseModel):
    """The result of a job that the claimed job depends on.

    `state`: completed, dead, cancelled, or gone. A job is gone if it is no longer stored, or while
    it is live again after a replay.
    """

    job_id: UUID
    state: str
    result: Raw | UnsetType = UNSET
    result_omitted: (
        Annotated[
            bool,
            Meta(
                description="True if the result does not fit into the response. `GET /jobs/{id}` of the parent has it."
            ),
        ]
        | UnsetType
    ) = UNSET


class ClaimedJob(ResponseModel, kw_only=True):
    """A job that the worker holds until `lease_expires_at`.

    Every later request about the job must send `lease_token`.
    """

    id: UUID
    queue: str
    job_type: str
    payload: Raw
    attempt: Int32
    max_attempts: Int32
    deliveries: Int32
    lease_token: UUID
    lease_expires_at: Instant
    lease_seconds: Int32
    checkpoint: Raw | UnsetType = UNSET
    progress: Progress | UnsetType = UNSET
    group: str | UnsetType = UNSET
    deadline_at: (
        Annotated[Instant, Meta(description="The run must end by this time, however often its lease is extended.")]
        | UnsetType
    ) = UNSET
    parent_results: list[ParentResult] | UnsetType = UNSET
    tags: list[str]
    metadata: dict[str, Raw]
    created_at: Instant
    traceparent: str | UnsetType = UNSET
    tracestate: str | UnsetType = UNSET


class ClaimAnswer(ResponseModel):
    """The claimed jobs, possibly none.

    `directive`: run, drain (claim no more jobs) or stop. Wait `poll_after_ms` before the next
    claim. `poll_after_ms` is 0 if there are jobs. Without jobs it is above 0 if the claim waited
    for less than half a second, if a rate limit or a quota is used up, or if the broker refused the
    claim.
    """

    jobs: list[ClaimedJob]
    settled: list[SettleResult]
    directive: str
    poll_after_ms: Int32
    server_time: Instant


class LeaseBeat(RequestModel):
    """A heartbeat for one lease."""

    lease_token: Token
    lease_seconds: LeaseSeconds | UnsetType = UNSET
    progress: Progress | UnsetType = UNSET
    checkpoint: Annotated[Raw, Meta(description="Any JSON; returned by the next claim of the job.")] | UnsetType = UNSET


class HeldLease(LeaseBeat, kw_only=True):
    """A heartbeat for one of several leases."""

    job_id: UUID


class Heartbeat(RequestModel):
    """A heartbeat for the leases of a worker.

    `holds_all` says that `leases` lists all leases of the worker. A job whose lease is missing from
    two such heartbeats in a row is requeued.
    """

    worker_id: Name
    leases: list[HeldLease] | UnsetType = UNSET
    holds_all: bool | UnsetType = UNSET


class LeaseStatus(ResponseModel):
    """The status of a lease after a heartbeat, and what its worker should do.

    `status`: extended, lost. `action`: continue, cancel (stop, then settle with any outcome),
    abandon (the lease is lost).
    """

    job_id: UUID
    status: str
    action: str
    lease_expires_at: Instant | UnsetType = UNSET


class HeartbeatAnswer(ResponseModel):
    """The status of each lease, in the order of the request.

    `released`: the jobs that were requeued because the worker did not list their leases.
    """

    directive: str
    next_heartbeat_ms: Int32
    leases: list[LeaseStatus]
    released: list[UUID]
    server_time: Instant
