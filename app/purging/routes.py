"""POST /queues/{name}/purge. A room of its own, as it knows jobs; queues know none."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from app.errors import MalformedJson, NotFound, ValidationFailed
from app.http.authentication import AccessDep
from app.http.dependencies import service
from app.http.operation import MANAGE, operation
from app.http.request_body import body, json_response
from app.http.schema_types import NameParameter
from app.purging.purging import QueuePurger
from app.queues.schemas import PurgeQueue, QueuePurged

router = APIRouter(tags=["queues"])


@router.post(
    "/queues/{name}/purge",
    **operation(QueuePurged, NotFound, MalformedJson, ValidationFailed, takes=PurgeQueue, to=MANAGE),
)
async def purge_queue(
    name: Annotated[NameParameter, Path()],
    purge: Annotated[PurgeQueue, body(PurgeQueue)],
    purger: Annotated[QueuePurger, service(QueuePurger)],
    access: AccessDep,
) -> Response:
    """Removes waiting jobs without a trace. It only counts unless `dry_run` is false. Running and finished ones are never touched.

    Jobs that wait for a removed one are told that it did not complete.
    """
    return json_response(await purger.purge(name, purge, access.caller))
