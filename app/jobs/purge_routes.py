"""HTTP route: purge a queue.

The route has the tag and the path of the package `queues`. It is not in that package, because
`queues` must not import `jobs`.
"""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from app.errors import MalformedJson, NotFound, ValidationFailed
from app.http.bodies import body, json_response
from app.http.dispatch import AccessDep, service
from app.http.operation import MANAGE, operation
from app.http.schema_types import NameParameter
from app.jobs.purge import QueuePurger
from app.queues.schemas import PurgeQueue, QueuePurged

router = APIRouter(tags=["queues"])


@router.post(
    "/queues/{name}/purge",
    **operation(QueuePurged, NotFound, MalformedJson, ValidationFailed, body=PurgeQueue, scopes=MANAGE),
)
async def purge_queue(
    name: Annotated[NameParameter, Path()],
    purge: Annotated[PurgeQueue, body(PurgeQueue)],
    purger: Annotated[QueuePurger, service("purger")],
    access: AccessDep,
) -> Response:
    """Removes waiting jobs and keeps no record of them. Only counts them unless `dry_run` is false.

    Running and finished jobs are not removed. A removed job counts as failed for the jobs that
    depend on it.
    """
    return json_response(await purger.purge(name, purge, access.caller))
