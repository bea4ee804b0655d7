"""HTTP routes of jobs: read, list, update, cancel."""

from functools import partial
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from app.errors import (
    MalformedJson,
    NotFound,
    PayloadTooLarge,
    ValidationFailed,
    WrongState,
)
from app.http.bodies import NoBody, body, edited_body, json_response
from app.http.dispatch import AccessDep, service
from app.http.operation import ENQUEUE_OR_MANAGE, MANAGE, READ, operation
from app.http.pagination import Page, PageParams
from app.http.read_only import EditedBody
from app.http.schema_types import NameParameter, NumberParameter, unset_if_none, value_or
from app.jobs.reader import JobReader
from app.jobs.schemas import (
    AttemptList,
    CancelAnswer,
    CancelJob,
    CancelJobs,
    Job,
    JobFilter,
    JobList,
    JobPatch,
    JobState,
    Order,
    QueryInstant,
)
from app.jobs.updater import JobUpdater
from app.server.exchange import get_client

router = APIRouter(tags=["jobs"])


class JobQuery(PageParams):
    """The filters, the order and the page of GET /jobs."""

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
    """The parameters of GET /jobs/{job_id}.

    Rejects unknown parameters, because a request with a misspelt `wait_second` must not return
    immediately.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    wait_seconds: NumberParameter = Field(
        0, ge=0, description="Wait up to this long for the job to finish. The server's maximum applies."
    )


@router.get("/jobs", **operation(JobList, ValidationFailed, scopes=READ))
async def list_jobs(
    reader: Annotated[JobReader, service("reader")], query: Annotated[JobQuery, Query()], access: AccessDep
) -> Response:
    """Lists jobs of every state, newest first, with filters and page by page.

    Finished jobs are listed until their retention ends. A page ends early, with `next_cursor`,
    before its jobs exceed `max_list_bytes` (see `/limits`).
    """
    return (await reader.page(query.filter(), query.order, query, access, payload=query.payload)).response()


@router.post("/jobs/cancel", **operation(CancelAnswer, MalformedJson, ValidationFailed, body=CancelJobs, scopes=MANAGE))
async def cancel_jobs(
    request: Annotated[CancelJobs, body(CancelJobs)],
    updater: Annotated[JobUpdater, service("updater")],
    access: AccessDep,
) -> Response:
    """Cancels jobs by ids or by filter. Asks the workers of running jobs to stop.

    `dry_run: true` only counts. `limit` (default 1000) bounds one call: repeat the call until
    `remaining` is 0. A running job that was asked to stop still matches until its run ends.
    """
    return json_response(await updater.cancel_many(request, access))


@router.get("/jobs/{job_id}", **operation(Job, NotFound, scopes=READ))
async def get_job(
    request: Request,
    job_id: UUID,
    reader: Annotated[JobReader, service("reader")],
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
    job_id: UUID,
    edited: Annotated[EditedBody[JobPatch], edited_body(JobPatch, Job, is_patch=True)],
    updater: Annotated[JobUpdater, service("updater")],
) -> Response:
    """Updates a job that is not running. Absent fields do not change.

    Read-only members that GET returns are ignored if they are sent back unchanged; a changed one is
    rejected with 422.
    """
    faults = await edited.read_only_faults(partial(updater.get_waiting, job_id))
    return json_response(await updater.patch(job_id, edited.body, faults))


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
    job_id: UUID,
    updater: Annotated[JobUpdater, service("updater")],
    request: Annotated[CancelJob, body(CancelJob)],
    access: AccessDep,
) -> Response:
    """Cancels a waiting job (200), or asks the worker of a running job to stop (202).

    A running job that completes anyway stays completed.
    """
    status, job = await updater.cancel(job_id, value_or(request.reason, None), access.caller)
    return json_response(job, status=status)


@router.post("/jobs/{job_id}/run-now", **operation(Job, NotFound, WrongState, scopes=ENQUEUE_OR_MANAGE))
async def run_job_now(job_id: UUID, updater: Annotated[JobUpdater, service("updater")], _: NoBody) -> Response:
    """Makes a scheduled job ready immediately."""
    return json_response(await updater.run_now(job_id))


@router.get("/jobs/{job_id}/attempts", **operation(AttemptList, NotFound, ValidationFailed, scopes=READ))
async def list_attempts(job_id: UUID, reader: Annotated[JobReader, service("reader")], page: Page) -> Response:
    """Lists the attempts of a job, oldest first."""
    return (await reader.attempts(job_id, page)).response()
