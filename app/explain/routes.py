"""GET /jobs/{id}/explain."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Response

from app.errors import NotFound
from app.explain.explaining import JobExplainer
from app.explain.schemas import Explanation
from app.web.bodies import json_response
from app.web.contract import READ, operation
from app.web.rooms import service

router = APIRouter(tags=["jobs"])


@router.get("/jobs/{job_id}/explain", **operation(Explanation, NotFound, to=READ))
async def explain_job(job_id: UUID, explaining: Annotated[JobExplainer, service(JobExplainer)]) -> Response:
    """Why a job is not running: every reason that holds now, with its facts."""
    return json_response(await explaining.explain(job_id))
