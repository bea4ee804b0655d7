"""HTTP routes of statistics: GET /stats, GET /queues/{name}/stats."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from app.errors import NotFound
from app.http.bodies import json_response
from app.http.dispatch import AccessDep, service
from app.http.operation import READ, operation
from app.http.schema_types import NameParameter
from app.stats.schemas import Stats
from app.stats.service import StatsService

router = APIRouter(tags=["stats"])

StatsServiceDep = Annotated[StatsService, service("stats")]


@router.get("/stats", **operation(Stats, scopes=READ))
async def get_stats(stats: StatsServiceDep, access: AccessDep) -> Response:
    """Counts, rates, latencies and health of all queues that your key may access.

    Counts by state are exact.
    """
    return json_response(await stats.all_stats(access))


@router.get("/queues/{name}/stats", **operation(Stats, NotFound, scopes=READ))
async def get_queue_stats(
    name: Annotated[NameParameter, Path()], stats: StatsServiceDep, access: AccessDep
) -> Response:
    """Counts, rates, latencies and health of one queue."""
    return json_response(await stats.queue_stats(name, access))
