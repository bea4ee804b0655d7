"""What producers and operators ask of jobs."""

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
from app.http.headers import IdempotencyKey, request_id, trace_of
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
from app.server.client import client_of

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
    """A misspelt `wait_second` must not answer at once."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    wait_seconds: float = Field(
        0, ge=0, description="Wait up to this long for the job to finish; clamped to the server's ceiling."
    )


@fast_route(
    router,
    "/jobs",
    **operation(
        Job,
        *_ENQUEUE,
        takes=JobCreate,
        status=201,
        also={
            200: (
                "A job with this unique key is there already (`Job-Duplicate: true`); with `replace` it was changed.",
                Job,
            )
        },
        to=ENQUEUE,
    ),
)
async def enqueue_job(
    request: Request,
    job: Annotated[JobCreate, body(JobCreate)],
    enqueuer: Annotated[EnqueueService, service(EnqueueService)],
    access: AccessDep,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Stores a job, durably, and answers with it.

    Repeat the call with the same `Idempotency-Key` after a lost answer: you get the job of the first call, as it is now.
    """
    stored, duplicate = await enqueuer.enqueue(job, trace_of(request), idempotency_key, access)
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
        takes=JobBatch,
        status=201,
        also={207: ("`atomic: false`: what became of each job.", BatchAnswer)},
        to=ENQUEUE,
    ),
)
async def enqueue_jobs(
    request: Request,
    batch: Annotated[UnreadBatch, body(UnreadBatch, limit="max_batch_bytes")],
    enqueuer: Annotated[EnqueueService, service(EnqueueService)],
    access: AccessDep,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Stores up to 1000 jobs. By default all or nothing: one bad job gives 422 with a pointer to it, and nothing is stored.

    With `atomic: false` the good ones are stored (207) and each bad one carries its problem.
    """
    result = await enqueuer.enqueue_batch(batch, trace_of(request), idempotency_key, request_id(request.scope), access)
    return json_response(result, status=201 if value_or(batch.atomic, True) else 207)


@router.get("/jobs", **operation(JobList, ValidationFailed, to=READ))
async def list_jobs(
    reader: Annotated[JobReader, service(JobReader)], query: Annotated[JobQuery, Query()], access: AccessDep
) -> Response:
    """Jobs in every state that is still kept, newest first, filtered and page by page.

    A page ends early, with `next_cursor`, before its jobs exceed `max_list_bytes` (see `/limits`).
    """
    return (await reader.page(query.filter(), query.order, query, access, payload=query.payload)).response()


@router.post("/jobs/cancel", **operation(CancelAnswer, MalformedJson, ValidationFailed, takes=CancelJobs, to=MANAGE))
async def cancel_jobs(
    request: Annotated[CancelJobs, body(CancelJobs)],
    updater: Annotated[JobUpdater, service(JobUpdater)],
    access: AccessDep,
) -> Response:
    """Cancels many jobs, by ids or by filter: waiting ones at once, running ones by asking their workers.

    `dry_run: true` only counts. `limit` (default 1000) bounds one call; repeat it until nothing matches.
    """
    return json_response(await updater.cancel_many(request, access))


@router.get("/jobs/{job_id}", **operation(Job, NotFound, to=READ))
async def get_job(
    request: Request,
    job_id: UUID,
    reader: Annotated[JobReader, service(JobReader)],
    query: Annotated[WaitQuery, Query()],
    access: AccessDep,
) -> Response:
    """A job as it is now; with `wait_seconds` as soon as it has finished, or as it is when the time is over."""
    if query.wait_seconds == 0:
        return json_response(await reader.get(job_id))
    return json_response(await reader.get_finished(job_id, query.wait_seconds, client_of(request), access))


@router.patch(
    "/jobs/{job_id}",
    **operation(
        Job,
        NotFound,
        WrongState,
        MalformedJson,
        PayloadTooLarge,
        ValidationFailed,
        takes=JobPatch,
        to=ENQUEUE_OR_MANAGE,
    ),
)
async def update_job(
    job_id: UUID, patch: Annotated[JobPatch, body(JobPatch)], updater: Annotated[JobUpdater, service(JobUpdater)]
) -> Response:
    """Changes a job that is not running. What is absent stays as it is."""
    return json_response(await updater.patch(job_id, patch))


@router.post(
    "/jobs/{job_id}/cancel",
    **operation(
        Job,
        NotFound,
        WrongState,
        takes=CancelJob,
        also={202: ("Running: its worker hears of it on its next heartbeat.", Job)},
        to=ENQUEUE_OR_MANAGE,
    ),
)
async def cancel_job(
    job_id: UUID, updater: Annotated[JobUpdater, service(JobUpdater)], request: Annotated[CancelJob, body(CancelJob)]
) -> Response:
    """Cancels a waiting job (200), or asks a running one to stop (202). A running job that completes all the same stays completed."""
    status, job = await updater.cancel(job_id, value_or(request.reason, None))
    return json_response(job, status=status)


@router.post("/jobs/{job_id}/run-now", **operation(Job, NotFound, WrongState, to=ENQUEUE_OR_MANAGE))
async def run_job_now(job_id: UUID, updater: Annotated[JobUpdater, service(JobUpdater)], _: NoBody) -> Response:
    """Makes a scheduled job ready now."""
    return json_response(await updater.run_now(job_id))


@router.get("/jobs/{job_id}/attempts", **operation(AttemptList, NotFound, ValidationFailed, to=READ))
async def list_attempts(job_id: UUID, reader: Annotated[JobReader, service(JobReader)], page: Page) -> Response:
    """The executions of a job, oldest first."""
    return (await reader.attempts(job_id, page)).response()
