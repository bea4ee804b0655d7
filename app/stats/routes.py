"""GET /stats, GET /queues/{name}/stats."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from app.errors import NotFound
from app.http.authentication import AccessDep
from app.http.dependencies import service
from app.http.operation import READ, operation
from app.http.request_body import json_response
from app.http.schema_types import NameParameter
from app.stats.schemas import Stats
from app.stats.service import StatsService

router = APIRouter(tags=["stats"])

StatsServiceDep = Annotated[StatsService, service(StatsService)]


@router.get("/stats", **operation(Stats, to=READ))
async def get_stats(stats: StatsServiceDep, access: AccessDep) -> Response:
    """How everything that your key reaches is: exact counts by state, rates, wait and run times, and a verdict."""
    return json_response(await stats.everything(access))


@router.get("/queues/{name}/stats", **operation(Stats, NotFound, to=READ))
async def get_queue_stats(name: Annotated[NameParameter, Path()], stats: StatsServiceDep) -> Response:
    """How one queue is."""
    return json_response(await stats.queue_stats(name))
