"""GET /jobs/{id}/explain."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Response

from app.errors import NotFound
from app.explain.explaining import Explaining
from app.explain.schemas import Explanation
from app.web.bodies import answer
from app.web.contract import READ, gives
from app.web.rooms import of

router = APIRouter(tags=["jobs"])


@router.get("/jobs/{job_id}/explain", **gives(Explanation, NotFound, to=READ))
async def explain_job(job_id: UUID, explaining: Annotated[Explaining, of(Explaining)]) -> Response:
    """Why a job is not running: every reason that holds now, with its facts."""
    return answer(await explaining.explain(job_id))
