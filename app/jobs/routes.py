"""HTTP routes of jobs: enqueue, read, list, update, cancel."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from app.enqueue.service import EnqueueService
from app.errors import (
    BatchTooLarge,
    DuplicateJob,
    IdempotencyKeyInUse,
    IdempotencyKeyReused,
    MalformedJson,
    NotFound,
    PayloadTooLarge,
    QueueFull,
    QueueLimit,
    ValidationFailed,
    WrongState,
)
from app.http.authentication import AccessDep
from app.http.dependencies import service
from app.http.fast_routes import fast_route
from app.http.headers import IdempotencyKey, request_id, trace_context
from app.http.operation import ENQUEUE, ENQUEUE_OR_MANAGE, MANAGE, READ, operation
from app.http.pagination import Page, PageParams
from app.http.request_body import NoBody, body, json_response
from app.http.schema_types import NameParameter, unset_if_none, value_or
from app.jobs.reader import JobReader
from app.jobs.schemas import (
    AttemptList,
    BatchAnswer,
    CancelAnswer,
    CancelJob,
    CancelJobs,
    Job,
    JobBatch,
    JobCreate,
    JobFilter,
    JobList,
    JobPatch,
    JobState,
    Order,
    QueryInstant,
    UnreadBatch,
)
from app.jobs.updater import JobUpdater
from app.server.client import get_client

router = APIRouter(tags=["jobs"])

_ENQUEUE = (
    MalformedJson,
    IdempotencyKeyInUse,
    DuplicateJob,
    PayloadTooLarge,
    ValidationFailed,
    IdempotencyKeyReused,
    QueueLimit,
    QueueFull,
)


class JobQuery(PageParams):
    """The filters of GET /jobs."""

    queue: NameParameter | None = None
    state: JobState | None = None
    job_type: NameParameter | None = None
    group: NameParameter | None = None
    tag: str | None = Field(None, max_length=120)
    created_after: QueryInstant | None = None
    created_before: QueryInstant | None = None
    order: Order = Field(Order.DESC, description="By age: `desc` (default, newest first) or `asc`.")
    payload: bool = Field(True, description="`false` leaves the payloads out.")

    def filter(self) -> JobFilter:
        return JobFilter(
            queue=unset_if_none(self.queue),
            state=unset_if_none(self.state),
            job_type=unset_if_none(self.job_type),
            group=unset_if_none(self.group),
            tag=unset_if_none(self.tag),
            created_after=unset_if_none(self.created_after),
            created_before=unset_if_none(self.created_before),
        )


class WaitQuery(BaseModel):
    """Rejects unknown parameters, because a misspelt `wait_second` must not return immediately."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    wait_seconds: float = Field(
        0, ge=0, description="Wait up to this long for the job to finish. The server's maximum applies."
    )


@fast_route(
    router,
    "/jobs",
    **operation(
        Job,
        *_ENQUEUE,
        body=JobCreate,
        status=201,
        other_responses={
            200: (
                "A job with this unique key already exists (`Job-Duplicate: true`). With `replace` it was updated.",
                Job,
            )
        },
        scopes=ENQUEUE,
    ),
)
async def enqueue_job(
    request: Request,
    job: Annotated[JobCreate, body(JobCreate)],
    enqueuer: Annotated[EnqueueService, service(EnqueueService)],
    access: AccessDep,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Stores a job durably and returns it.

    If the response is lost, retry with the same `Idempotency-Key`: you get the job of the first
    call, as it is now.
    """
    stored, duplicate = await enqueuer.enqueue(job, trace_context(request), idempotency_key, access)
    location = {"Location": f"/jobs/{stored.id}"}
    return (
        json_response(stored, headers={**location, "Job-Duplicate": "true"})
        if duplicate
        else json_response(stored, status=201, headers=location)
    )


@fast_route(
    router,
    "/jobs/batch",
    **operation(
        BatchAnswer,
        BatchTooLarge,
        *_ENQUEUE,
        body=JobBatch,
        status=201,
        other_responses={207: ("`atomic: false`: the result of each job.", BatchAnswer)},
        scopes=ENQUEUE,
    ),
)
async def enqueue_jobs(
    request: Request,
    batch: Annotated[UnreadBatch, body(UnreadBatch, limit="max_batch_bytes")],
    enqueuer: Annotated[EnqueueService, service(EnqueueService)],
    access: AccessDep,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Stores up to 1000 jobs. By default all or nothing: one invalid job, and the response is 422.

    The 422 points at each invalid job. With `atomic: false` the valid jobs are stored (207), and
    the result of each invalid job has its problem.
    """
    result = await enqueuer.enqueue_batch(
        batch, trace_context(request), idempotency_key, request_id(request.scope), access
    )
    return json_response(result, status=201 if value_or(batch.atomic, True) else 207)


@router.get("/jobs", **operation(JobList, ValidationFailed, scopes=READ))
async def list_jobs(
    reader: Annotated[JobReader, service(JobReader)], query: Annotated[JobQuery, Query()], access: AccessDep
) -> Response:
    """Lists jobs of every state, newest first, with filters and page by page.

    Finished jobs are listed until their retention ends. A page ends early, with `next_cursor`,
    before its jobs exceed `max_list_bytes` (see `/limits`).
    """
    return (await reader.page(query.filter(), query.order, query, access, payload=query.payload)).response()


@router.post("/jobs/cancel", **operation(CancelAnswer, MalformedJson, ValidationFailed, body=CancelJobs, scopes=MANAGE))
async def cancel_jobs(
    request: Annotated[CancelJobs, body(CancelJobs)],
    updater: Annotated[JobUpdater, service(JobUpdater)],
    access: AccessDep,
) -> Response:
    """Cancels jobs by ids or by filter. Asks the workers of running jobs to stop.

    `dry_run: true` only counts. `limit` (default 1000) bounds one call: repeat the call until no
    job matches.
    """
    return json_response(await updater.cancel_many(request, access))


@router.get("/jobs/{job_id}", **operation(Job, NotFound, scopes=READ))
async def get_job(
    request: Request,
    job_id: UUID,
    reader: Annotated[JobReader, service(JobReader)],
    query: Annotated[WaitQuery, Query()],
    access: AccessDep,
) -> Response:
    """Returns a job.

    With `wait_seconds` the response waits until the job has finished or the time is over.
    """
    if query.wait_seconds == 0:
        return json_response(await reader.get(job_id))
    return json_response(await reader.get_finished(job_id, query.wait_seconds, get_client(request), access))


@router.patch(
    "/jobs/{job_id}",
    **operation(
        Job,
        NotFound,
        WrongState,
        MalformedJson,
        PayloadTooLarge,
        ValidationFailed,
        body=JobPatch,
        scopes=ENQUEUE_OR_MANAGE,
    ),
)
async def update_job(
    job_id: UUID, patch: Annotated[JobPatch, body(JobPatch)], updater: Annotated[JobUpdater, service(JobUpdater)]
) -> Response:
    """Updates a job that is not running. Absent fields do not change."""
    return json_response(await updater.patch(job_id, patch))


@router.post(
    "/jobs/{job_id}/cancel",
    **operation(
        Job,
        NotFound,
        WrongState,
        body=CancelJob,
        other_responses={
            202: ("The job is running: its worker learns of the cancellation by its next heartbeat.", Job)
        },
        scopes=ENQUEUE_OR_MANAGE,
    ),
)
async def cancel_job(
    job_id: UUID, updater: Annotated[JobUpdater, service(JobUpdater)], request: Annotated[CancelJob, body(CancelJob)]
) -> Response:
    """Cancels a waiting job (200), or asks the worker of a running job to stop (202).

    A running job that completes anyway stays completed.
    """
    status, job = await updater.cancel(job_id, value_or(request.reason, None))
    return json_response(job, status=status)


@router.post("/jobs/{job_id}/run-now", **operation(Job, NotFound, WrongState, scopes=ENQUEUE_OR_MANAGE))
async def run_job_now(job_id: UUID, updater: Annotated[JobUpdater, service(JobUpdater)], _: NoBody) -> Response:
    """Makes a scheduled job ready immediately."""
    return json_response(await updater.run_now(job_id))


@router.get("/jobs/{job_id}/attempts", **operation(AttemptList, NotFound, ValidationFailed, scopes=READ))
async def list_attempts(job_id: UUID, reader: Annotated[JobReader, service(JobReader)], page: Page) -> Response:
    """Lists the attempts of a job, oldest first."""
    return (await reader.attempts(job_id, page)).response()
