"""GET /jobs/{id}/explain."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Response

from app.errors import NotFound
from app.explain.reasons import JobExplainer
from app.explain.schemas import Explanation
from app.http.bodies import json_response
from app.http.dispatch import service
from app.http.operation import READ, operation

router = APIRouter(tags=["jobs"])


@router.get("/jobs/{job_id}/explain", **operation(Explanation, NotFound, scopes=READ))
async def explain_job(job_id: UUID, explainer: Annotated[JobExplainer, service("explainer")]) -> Response:
    """Explains why a job is not running.

    Returns every reason that applies now, with the times, limits and other jobs that cause it.
    """
    return json_response(await explainer.explain(job_id))
