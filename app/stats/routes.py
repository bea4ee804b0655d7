"""GET /stats, GET /queues/{name}/stats."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from app.errors import NotFound
from app.stats.reckoning import StatsService
from app.stats.schemas import Stats
from app.web.auth import AccessDep
from app.web.bodies import json_response
from app.web.contract import READ, operation
from app.web.rooms import service
from app.web.shapes import NameParameter

router = APIRouter(tags=["stats"])

StatsServiceDep = Annotated[StatsService, service(StatsService)]


@router.get("/stats", **operation(Stats, to=READ))
async def get_stats(reckoning: StatsServiceDep, reach: AccessDep) -> Response:
    """How everything that your key reaches is: exact counts by state, rates, wait and run times, and a verdict."""
    return json_response(await reckoning.everything(reach))


@router.get("/queues/{name}/stats", **operation(Stats, NotFound, to=READ))
async def get_queue_stats(name: Annotated[NameParameter, Path()], reckoning: StatsServiceDep) -> Response:
    """How one queue is."""
    return json_response(await reckoning.of_queue(name))
