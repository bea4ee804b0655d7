"""HTTP routes of job types."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Response

from app.errors import MalformedJson, NotFound, ValidationFailed
from app.http.bodies import NoBody, edited_body, json_response
from app.http.dispatch import AccessDep, service
from app.http.operation import MANAGE, READ, operation
from app.http.pagination import Page
from app.http.read_only import EditedBody
from app.http.schema_types import NameParameter
from app.job_types.schemas import JobType, JobTypeConfig, JobTypeList
from app.job_types.service import JobTypeService

router = APIRouter(tags=["job_types"])

JobTypeServiceDep = Annotated[JobTypeService, service("job_types")]
EditedType = Annotated[EditedBody[JobTypeConfig], edited_body(JobTypeConfig, JobType, advancing_members=["updated_at"])]
TypeName = Annotated[NameParameter, Path()]


@router.get("/job-types", **operation(JobTypeList, scopes=READ))
async def list_job_types(job_types: JobTypeServiceDep, page: Page) -> Response:
    """Lists the configured job types, sorted by name.

    Jobs of other types can be enqueued, too; their payloads are not validated.
    """
    return (await job_types.page(page)).response()


@router.get("/job-types/{name}", **operation(JobType, NotFound, scopes=READ))
async def get_job_type(name: TypeName, job_types: JobTypeServiceDep) -> Response:
    """Returns one job type with its configuration."""
    return json_response(await job_types.get(name))


@router.put(
    "/job-types/{name}",
    **operation(JobType, MalformedJson, ValidationFailed, body=JobTypeConfig, scopes=MANAGE, all_queues=True),
)
async def put_job_type(name: TypeName, job_types: JobTypeServiceDep, edited: EditedType, access: AccessDep) -> Response:
    """Replaces the configuration of a job type: members that are absent are unset.

    The change is in effect on this broker when the call returns, on other brokers within 250 ms.
    Jobs that are already enqueued keep their values.

    Read-only members that GET returns are ignored if they are sent back unchanged; a changed one is
    rejected with 422.
    """
    faults = await edited.read_only_faults(partial(job_types.get, name), members_if_missing={"name": name})
    return json_response(await job_types.put(name, edited.body, access.caller, faults))


@router.delete("/job-types/{name}", **operation(JobType, NotFound, scopes=MANAGE, all_queues=True))
async def delete_job_type(name: TypeName, job_types: JobTypeServiceDep, _: NoBody, access: AccessDep) -> Response:
    """Deletes a job type and returns its last state.

    Its jobs are kept, and jobs of this type can still be enqueued.
    """
    return json_response(await job_types.delete(name, access.caller))
