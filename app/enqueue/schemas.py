"""Request and response models of an enqueue: one job, or a batch."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import ClassVar

import msgspec

from app.errors import Fault
from app.http.member_rules import MemberRule, NotBoth, Requires, ValueOf, member_of
from app.http.problems import Problem
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
)
from app.jobs.schemas import Metadata, Tags
from app.queues.schemas import LeaseSeconds, MaxAttempts, Priority, RetryPolicy, TimeoutSeconds

_raw_list = msgspec.json.Decoder(list[Raw])
DelaySeconds = Annotated[int, integer(ge=0, description="Seconds from now.")]


class OnDuplicate(StrEnum):
    """How the broker handles an enqueue if another job already has the unique key."""

    RETURN_EXISTING = "return_existing"
    REJECT = "reject"
    REPLACE = "replace"


class OnParentFailure(StrEnum):
    """How the broker handles a job if one of its parents becomes dead or is cancelled."""

    CANCEL = "cancel"
    RUN = "run"


class ReplacedJobsKeepParents(MemberRule):
    """A job with `on_duplicate: replace` must not have `depends_on`.

    A replaced job keeps its own dependencies.
    """

    def faults(self, value_of: ValueOf, pointer: str) -> Iterator[Fault]:
        replaces = member_of(value_of("unique"), "on_duplicate") == OnDuplicate.REPLACE
        if replaces and value_of("depends_on") is not UNSET:
            detail = "on_duplicate replace cannot be used with depends_on: a replaced job keeps its dependencies"
            yield Fault(f"{pointer}/unique/on_duplicate", "invalid", detail)


class Unique(RequestModel):
    """At most one job of the queue has this key at a time.

    By default, a job has its key while it waits or runs. With `for_seconds`, a job has its key for
    that time instead.
    """

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

    rules: ClassVar[Sequence[MemberRule]] = (
        NotBoth("run_at", "delay_seconds"),
        Requires("on_parent_failure", "depends_on"),
        ReplacedJobsKeepParents(),
    )

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


class UncheckedJob(BatchJob):
    """A job in a batch whose names are not checked yet.

    For a name with a pattern msgspec calls a Python function, which takes 0.4 µs. The jobs of a
    batch have few distinct names, so the broker checks each distinct name once.
    """

    job_type: str
    queue: str | UnsetType = UNSET
    group: str | UnsetType = UNSET
    ref: str | UnsetType = UNSET
    depends_on: Annotated[list[str], Meta(max_length=1000)] | UnsetType = UNSET


class BatchOptions(RequestModel):
    """Options of a batch."""

    atomic: Annotated[bool, Meta(description="Default true: if one job is invalid, nothing is stored.")] | UnsetType = (
        UNSET
    )


class JobBatch(BatchOptions, kw_only=True):
    """Up to 1000 jobs. All or nothing, unless `atomic` is false."""

    jobs: Annotated[list[BatchJob], Meta(description="At least one.")]


class RawBatch(BatchOptions, kw_only=True):
    """A `JobBatch` whose jobs are not decoded yet.

    If any job is invalid, the broker decodes the jobs one by one, so that the problem of each
    invalid job has its own JSON pointer.
    """

    jobs: list[Raw]  # each the text of a job, or of several jobs with commas between them

    def separate_jobs(self) -> Iterator[Raw]:
        """Yields the text of each job."""
        for text in self.jobs:
            yield from _raw_list.decode(b"[%b]" % text)


class BatchResult(ResponseModel, kw_only=False):
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
