"""HTTP routes of schedules."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Response

from app.errors import DuplicateJob, MalformedJson, NotFound, PayloadTooLarge, QueueFull, QueueLimit, ValidationFailed
from app.http.bodies import NoBody, body, edited_body, json_response
from app.http.dispatch import AccessDep, service
from app.http.operation import MANAGE, READ, operation
from app.http.pagination import Page
from app.http.read_only import EditedBody
from app.http.schema_types import NameParameter
from app.jobs.schemas import Job
from app.schedules.enqueuer import PeriodicEnqueuer
from app.schedules.schemas import Schedule, ScheduleList, SchedulePreview, SchedulePut, ScheduleRuns
from app.schedules.service import ScheduleService

router = APIRouter(tags=["schedules"])

ScheduleServiceDep = Annotated[ScheduleService, service("schedules")]
_ADVANCING = ("next_run_at", "last_run_at", "last_job_id", "upcoming", "updated_at")
_PAUSE_DEPENDENT = ("next_run_at", "upcoming")
EditedSchedule = Annotated[
    EditedBody[SchedulePut],
    edited_body(SchedulePut, Schedule, advancing_members=_ADVANCING, pause_dependent_members=_PAUSE_DEPENDENT),
]
ScheduleName = Annotated[NameParameter, Path()]
_INVALID_BODY = (MalformedJson, ValidationFailed)
_EXISTING: dict[int, tuple[str, type]] = {
    200: ("A job with the same unique key exists already (`Job-Duplicate: true`).", Job)
}


@router.get("/schedules", **operation(ScheduleList, ValidationFailed, scopes=READ))
async def list_schedules(schedules: ScheduleServiceDep, page: Page, access: AccessDep) -> Response:
    """Lists schedules, sorted by name."""
    return (await schedules.page(page, access)).response()


@router.post("/schedules/preview", **operation(ScheduleRuns, *_INVALID_BODY, body=SchedulePreview, scopes=READ))
async def preview_schedule(
    preview: Annotated[SchedulePreview, body(SchedulePreview)], schedules: ScheduleServiceDep
) -> Response:
    """Returns the next five runs that a schedule would have. Nothing is stored."""
    return json_response(schedules.preview(preview))


@router.get("/schedules/{name}", **operation(Schedule, NotFound, scopes=READ))
async def get_schedule(name: ScheduleName, schedules: ScheduleServiceDep, access: AccessDep) -> Response:
    """Returns one schedule with its next five runs."""
    return json_response(await schedules.get(name, access))


@router.put(
    "/schedules/{name}",
    **operation(Schedule, NotFound, PayloadTooLarge, *_INVALID_BODY, body=SchedulePut, scopes=MANAGE),
)
async def put_schedule(
    name: ScheduleName, edited: EditedSchedule, schedules: ScheduleServiceDep, access: AccessDep
) -> Response:
    """Creates or replaces a schedule.

    Sending the same schedule again changes nothing. New times apply from now on; `last_run_at` and
    `last_job_id` are kept. If a schedule of this name enqueues into a queue that your key may not
    access, the response is 404.

    Read-only members that GET returns are ignored if they are sent back unchanged, or with an
    earlier value that the broker has advanced since; a changed one is rejected with 422.
    """
    faults = await edited.read_only_faults(partial(schedules.get, name, access), members_if_missing={"name": name})
    return json_response(await schedules.put(name, edited.body, access, faults))


@router.delete("/schedules/{name}", **operation(Schedule, NotFound, scopes=MANAGE))
async def delete_schedule(name: ScheduleName, schedules: ScheduleServiceDep, access: AccessDep) -> Response:
    """Deletes a schedule and returns its last state. Jobs that it has enqueued are kept."""
    return json_response(await schedules.delete(name, access))


@router.post(
    "/schedules/{name}/run",
    **operation(
        Job, NotFound, DuplicateJob, QueueFull, QueueLimit, status=201, other_responses=_EXISTING, scopes=MANAGE
    ),
)
async def run_schedule(
    name: ScheduleName,
    periodic_enqueuer: Annotated[PeriodicEnqueuer, service("periodic_enqueuer")],
    _: NoBody,
    access: AccessDep,
) -> Response:
    """Enqueues the job of a schedule now, even if the schedule is paused or its last job is still
    running.

    The next scheduled run is unaffected.
    """
    job, created = await periodic_enqueuer.run_now(name, access)
    location = {"Location": f"/jobs/{job.id}"}
    return (
        json_response(job, status=201, headers=location)
        if created
        else json_response(job, headers={**location, "Job-Duplicate": "true"})
    )


@router.post("/schedules/{name}/pause", **operation(Schedule, NotFound, scopes=MANAGE))
async def pause_schedule(name: ScheduleName, schedules: ScheduleServiceDep, _: NoBody, access: AccessDep) -> Response:
    """Pauses a schedule until it is resumed."""
    return json_response(await schedules.pause(name, access))


@router.post("/schedules/{name}/resume", **operation(Schedule, NotFound, scopes=MANAGE))
async def resume_schedule(name: ScheduleName, schedules: ScheduleServiceDep, _: NoBody, access: AccessDep) -> Response:
    """Resumes a paused schedule from now on.

    Runs that it missed while it was paused are skipped.
    """
    return json_response(await schedules.resume(name, access))
