"""HTTP routes: enqueue one job, or a batch."""

from typing import Annotated

from fastapi import APIRouter, Request, Response
from starlette.types import Scope

from app.enqueue.schemas import BatchAnswer, JobBatch, JobCreate, RawBatch
from app.enqueue.service import EnqueueService
from app.errors import (
    BatchTooLarge,
    DuplicateJob,
    IdempotencyKeyInUse,
    IdempotencyKeyReused,
    MalformedJson,
    PayloadTooLarge,
    QueueFull,
    QueueLimit,
    ValidationFailed,
)
from app.http.bodies import body, json_response
from app.http.dispatch import AccessDep, fast_route, service
from app.http.headers import IdempotencyKey, request_id
from app.http.operation import ENQUEUE, operation
from app.http.schema_types import value_or
from app.jobs.schemas import Job

router = APIRouter(tags=["jobs"])

MAX_TRACE_BYTES = 512

_PROBLEMS = (
    MalformedJson,
    IdempotencyKeyInUse,
    DuplicateJob,
    PayloadTooLarge,
    ValidationFailed,
    IdempotencyKeyReused,
    QueueLimit,
    QueueFull,
)


@fast_route(
    router,
    "/jobs",
    **operation(
        Job,
        *_PROBLEMS,
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
    enqueuer: Annotated[EnqueueService, service("enqueuer")],
    access: AccessDep,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Stores a job durably and returns it.

    If the response is lost, retry with the same `Idempotency-Key`: you get the job of the first
    call, as it is now.
    """
    stored, duplicate = await enqueuer.enqueue(job, _trace_context(request.scope), idempotency_key, access)
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
        *_PROBLEMS,
        body=JobBatch,
        status=201,
        other_responses={207: ("`atomic: false`: the result of each job.", BatchAnswer)},
        scopes=ENQUEUE,
    ),
)
async def enqueue_jobs(
    request: Request,
    batch: Annotated[RawBatch, body(RawBatch, limit_name="max_batch_bytes")],
    enqueuer: Annotated[EnqueueService, service("enqueuer")],
    access: AccessDep,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Stores up to 1000 jobs. By default, if one job is invalid, none is stored (422).

    The 422 response lists the faults of the invalid jobs. With `atomic: false` the valid jobs are
    stored (207), and the result of each invalid job has its problem.
    """
    result = await enqueuer.enqueue_batch(
        batch, _trace_context(request.scope), idempotency_key, request_id(request.scope), access
    )
    return json_response(result, status=201 if value_or(batch.atomic, True) else 207)


def _trace_context(scope: Scope) -> dict[str, str]:
    """Returns the W3C trace context, which is stored with the job and delivered with it.

    - Several `traceparent` headers, or one of more than 512 bytes: ignores `traceparent` and
      `tracestate`.
    - Several `tracestate` headers: joins them. Ignores them if they have more than 512 bytes.
    """
    if b"traceparent" not in scope["headers_by_name"]:
        return {}
    parents = [value for name, value in scope["headers"] if name == b"traceparent"]
    state = b",".join(value for name, value in scope["headers"] if name == b"tracestate")
    if len(parents) > 1 or len(parents[0]) > MAX_TRACE_BYTES:
        return {}
    trace = {"traceparent": str(parents[0], "latin-1")}
    return {**trace, "tracestate": str(state, "latin-1")} if 0 < len(state) <= MAX_TRACE_BYTES else trace
