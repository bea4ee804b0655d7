"""How operators say what holds for the jobs of a type."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Response

from app.errors import MalformedJson, NotFound, ValidationFailed
from app.http.dependencies import service
from app.http.operation import MANAGE, READ, operation
from app.http.pagination import Page
from app.http.read_only import Edited
from app.http.request_body import NoBody, edited_body, json_response
from app.http.schema_types import NameParameter
from app.job_types.schemas import JobType, JobTypeConfig, JobTypeList
from app.job_types.service import JobTypeService

router = APIRouter(tags=["job_types"])

JobTypeServiceDep = Annotated[JobTypeService, service(JobTypeService)]
EditedType = Annotated[Edited[JobTypeConfig], edited_body(JobTypeConfig, JobType, moving=["updated_at"])]
TypeName = Annotated[NameParameter, Path()]


@router.get("/job-types", **operation(JobTypeList, to=READ))
async def list_job_types(room: JobTypeServiceDep, page: Page) -> Response:
    """Job types that were configured, in the order of their names. Jobs of other types are taken too, and checked for nothing."""
    return (await room.page(page)).response()


@router.get("/job-types/{name}", **operation(JobType, NotFound, to=READ))
async def get_job_type(name: TypeName, room: JobTypeServiceDep) -> Response:
    """A job type as it was put."""
    return json_response(await room.get(name))


@router.put(
    "/job-types/{name}",
    **operation(JobType, MalformedJson, ValidationFailed, takes=JobTypeConfig, to=MANAGE, everywhere=True),
)
async def put_job_type(name: TypeName, room: JobTypeServiceDep, sent: EditedType) -> Response:
    """Says what holds for jobs of this type from now on: all of it, what is absent holds no longer.

    In force here when this is answered, elsewhere within 250 ms. Jobs that wait already keep what they were enqueued with.

    Read-only members that GET returns are ignored when they are sent back unchanged; a changed one is 422.
    """
    await sent.check(name, partial(room.get, name))
    return json_response(await room.put(name, sent.body))


@router.delete("/job-types/{name}", **operation(JobType, NotFound, to=MANAGE, everywhere=True))
async def delete_job_type(name: TypeName, room: JobTypeServiceDep, _: NoBody) -> Response:
    """Forgets a job type, and answers with it as it was. Its jobs stay, and new ones are still taken."""
    return json_response(await room.delete(name))
