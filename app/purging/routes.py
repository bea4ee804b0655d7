"""POST /queues/{name}/purge. A room of its own, as it knows jobs; queues know none."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from app.errors import MalformedJson, NotFound, ValidationFailed
from app.purging.purging import Purging
from app.queues.schemas import PurgeQueue, QueuePurged
from app.web.auth import Reach
from app.web.bodies import answer, body
from app.web.contract import MANAGE, gives
from app.web.rooms import of
from app.web.shapes import NameParameter

router = APIRouter(tags=["queues"])


@router.post("/queues/{name}/purge", **gives(QueuePurged, NotFound, MalformedJson, ValidationFailed, takes=PurgeQueue, to=MANAGE))
async def purge_queue(
    name: Annotated[NameParameter, Path()],
    purge: Annotated[PurgeQueue, body(PurgeQueue)],
    purging: Annotated[Purging, of(Purging)],
    reach: Reach,
) -> Response:
    """Removes waiting jobs without a trace. It only counts unless `dry_run` is false. Running and finished ones are never touched.

    Jobs that wait for a removed one are told that it did not complete.
    """
    return answer(await purging.purge(name, purge, reach.caller))
