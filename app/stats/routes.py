"""GET /stats, GET /queues/{name}/stats."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from app.errors import NotFound
from app.stats.reckoning import Reckoning
from app.stats.schemas import Stats
from app.web.auth import Reach
from app.web.bodies import answer
from app.web.contract import READ, gives
from app.web.rooms import of
from app.web.shapes import NameParameter

router = APIRouter(tags=["stats"])

ReckoningRoom = Annotated[Reckoning, of(Reckoning)]


@router.get("/stats", **gives(Stats, to=READ))
async def get_stats(reckoning: ReckoningRoom, reach: Reach) -> Response:
    """How everything that your key reaches is: exact counts by state, rates, wait and run times, and a verdict."""
    return answer(await reckoning.everything(reach))


@router.get("/queues/{name}/stats", **gives(Stats, NotFound, to=READ))
async def get_queue_stats(name: Annotated[NameParameter, Path()], reckoning: ReckoningRoom) -> Response:
    """How one queue is."""
    return answer(await reckoning.of_queue(name))
