"""The shapes that workers send and get."""

from enum import StrEnum

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

# A token is opaque: one that we never gave out is simply a lost lease, so any string is taken.
Token = str
Seconds = Annotated[int, integer(ge=0, le=366 * 24 * 60 * 60)]


class Outcome(StrEnum):
    """How a worker ends a lease."""

    COMPLETE = "complete"
    FAIL = "fail"
    SNOOZE = "snooze"
    RELEASE = "release"


class Scope(StrEnum):
    """Whom a failure concerns."""

    JOB = "job"
    GROUP = "group"


class SentError(RequestModel):
    """What went wrong. Long texts are cut to 8 kB; NUL characters are dropped."""

    message: str
    error_type: str | UnsetType = UNSET
    stack: str | UnsetType = UNSET
    details: Annotated[Raw, Meta(description="Any JSON.")] | UnsetType = UNSET


class Settlement(RequestModel):
    """The end of a lease, in one flat shape; which fields count depends on `outcome`."""

    job_id: UUID
    lease_token: Token
    outcome: Outcome
    result: Annotated[Raw, Meta(description="complete: any JSON.")] | UnsetType = UNSET
    error: SentError | UnsetType = UNSET
    retryable: (
        Annotated[bool, Meta(description="fail: default true; false makes the job dead at once.")] | UnsetType
    ) = UNSET
    retry_after_seconds: Seconds | UnsetType = UNSET
    scope: Scope | UnsetType = UNSET
    delay_seconds: Seconds | UnsetType = UNSET
    checkpoint: Annotated[Raw, Meta(description="Any JSON, handed back on the next claim.")] | UnsetType = UNSET


class Complete(RequestModel):
    """The work is done."""

    lease_token: Token
    result: Annotated[Raw, Meta(description="Any JSON.")] | UnsetType = UNSET


class Fail(RequestModel):
    """The work failed. It is tried again after a back-off, until its attempts are used up."""

    lease_token: Token
    error: SentError
    retryable: Annotated[bool, Meta(description="Default true; false makes the job dead at once.")] | UnsetType = UNSET
    retry_after_seconds: Seconds | UnsetType = UNSET
    scope: Scope | UnsetType = UNSET


class Snooze(RequestModel):
    """Not now: try again later. Costs no attempt."""

    lease_token: Token
    delay_seconds: Seconds
    checkpoint: Annotated[Raw, Meta(description="Any JSON, handed back on the next claim.")] | UnsetType = UNSET


class Release(RequestModel):
    """Give it back: somebody else may take it now. Costs no attempt."""

    lease_token: Token


class SettleResult(ResponseModel):
    """What became of a settlement. `status`: settled, already_settled, lease_lost, not_found."""

    job_id: UUID
    status: str
    state: str | UnsetType = UNSET
    attempt: Int32 | UnsetType = UNSET
    run_at: Instant | UnsetType = UNSET


class SettleJobs(RequestModel):
    """Up to 1000 settlements of any kind."""

    items: list[Settlement]


class SettleAnswer(ResponseModel):
    """What became of each settlement, in the order of the request."""

    results: list[SettleResult]
    settled: Int32
    lost: Int32


class ClaimJobs(RequestModel):
    """What a worker asks for. Everything has a default."""

    queues: (
        Annotated[
            list[Name], Meta(min_length=1, max_length=100, description='In order of preference. Default ["default"].')
        ]
        | UnsetType
    ) = UNSET
    job_types: Annotated[list[Name], Meta(min_length=1, max_length=100, description="Only these.")] | UnsetType = UNSET
    max_jobs: Annotated[int, integer(ge=1, le=1000, description="Default 1.")] | UnsetType = UNSET
    wait_seconds: (
        Annotated[float, number(ge=0, description="Default 0. Clamped to the server's ceiling.")] | UnsetType
    ) = UNSET
    lease_seconds: LeaseSeconds | UnsetType = UNSET
    worker_id: Name | UnsetType = UNSET
    settle: list[Settlement] | UnsetType = UNSET
    parent_results: (
        Annotated[bool, Meta(description="Whether jobs come with the results of those they waited for.")] | UnsetType
    ) = UNSET


class ParentResult(ResponseModel):
    """What a job that this one waited for has come to. `state`: completed, dead, cancelled, or gone if it is no longer kept."""

    job_id: UUID
    state: str
    result: Raw | UnsetType = UNSET


class ClaimedJob(ResponseModel, kw_only=True):
    """A job in your hands until `lease_expires_at`. Send `lease_token` with every word about it."""

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
        Annotated[Instant, Meta(description="The run must be over by then, however often it is extended.")] | UnsetType
    ) = UNSET
    parent_results: list[ParentResult] | UnsetType = UNSET
    tags: list[str]
    metadata: dict[str, Raw]
    created_at: Instant
    traceparent: str | UnsetType = UNSET
    tracestate: str | UnsetType = UNSET


class ClaimAnswer(ResponseModel):
    """The claimed jobs, possibly none. `directive`: run, drain (claim no more) or stop. Wait `poll_after_ms` before the next claim: it is 0
    with jobs and after a wait, above 0 if there was no job and the claim had no `wait_seconds`."""

    jobs: list[ClaimedJob]
    settled: list[SettleResult]
    directive: str
    poll_after_ms: Int32
    server_time: Instant


class LeaseBeat(RequestModel):
    """A sign of life for one lease."""

    lease_token: Token
    lease_seconds: LeaseSeconds | UnsetType = UNSET
    progress: Progress | UnsetType = UNSET
    checkpoint: Annotated[Raw, Meta(description="Any JSON, handed back on the next claim.")] | UnsetType = UNSET


class HeldLease(LeaseBeat, kw_only=True):
    """A sign of life for one lease of many."""

    job_id: UUID


class Heartbeat(RequestModel):
    """Signs of life for all leases of a worker. `holds_all` says that the list is complete: what is missing goes back."""

    worker_id: Name
    leases: list[HeldLease] | UnsetType = UNSET
    holds_all: bool | UnsetType = UNSET


class LeaseStatus(ResponseModel):
    """`status`: extended, lost. `action`: continue, cancel (stop, and settle as you like), abandon (it is no longer yours)."""

    job_id: UUID
    status: str
    action: str
    lease_expires_at: Instant | UnsetType = UNSET


class HeartbeatAnswer(ResponseModel):
    """What became of each lease, in the order of the request, and of leases that you did not list (`released`)."""

    directive: str
    next_heartbeat_ms: Int32
    leases: list[LeaseStatus]
    released: list[UUID]
    server_time: Instant
