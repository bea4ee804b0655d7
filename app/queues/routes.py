"""HTTP routes of queues: configure, pause, resume, delete."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Response

from app.errors import MalformedJson, NotFound, QueueLimit, QueueNotEmpty, ValidationFailed
from app.http.bodies import NoBody, body, edited_body, json_response
from app.http.dispatch import AccessDep, service
from app.http.operation import MANAGE, READ, operation
from app.http.pagination import Page
from app.http.read_only import EditedBody
from app.http.schema_types import NameParameter, value_or
from app.queues.schemas import PauseQueue, Queue, QueueConfig, QueueList
from app.queues.service import QueueService

router = APIRouter(tags=["queues"])

QueueServiceDep = Annotated[QueueService, service("queue_service")]
QueueName = Annotated[NameParameter, Path()]
_PAUSE_DEPENDENT = ("paused_at", "paused_reason")
_NULL_HINT = "; PATCH cannot unset a member; a PUT without it does"
PutBody = Annotated[EditedBody[QueueConfig], edited_body(QueueConfig, Queue, pause_dependent_members=_PAUSE_DEPENDENT)]
PatchBody = Annotated[
    EditedBody[QueueConfig],
    edited_body(QueueConfig, Queue, pause_dependent_members=_PAUSE_DEPENDENT, is_patch=True, null_hint=_NULL_HINT),
]
_INVALID_BODY = (MalformedJson, ValidationFailed)


@router.get("/queues", **operation(QueueList, ValidationFailed, scopes=READ))
async def list_queues(queues: QueueServiceDep, page: Page, access: AccessDep) -> Response:
    """Lists the queues that your key may access, with their configuration, sorted by name."""
    return (await queues.list_page(page, access)).response()


@router.get("/queues/{name}", **operation(Queue, NotFound, scopes=READ))
async def get_queue(name: QueueName, queues: QueueServiceDep) -> Response:
    """Returns one queue with its configuration: the members that were set, and always `lanes` and
    `paused`.
    """
    return json_response(await queues.get(name))


@router.put("/queues/{name}", **operation(Queue, QueueLimit, *_INVALID_BODY, body=QueueConfig, scopes=MANAGE))
async def put_queue(name: QueueName, edited: PutBody, queues: QueueServiceDep, access: AccessDep) -> Response:
    """Replaces the configuration of a queue, and creates the queue if it does not exist.

    Members that are absent are unset, except `lanes`, which keeps its value. A paused queue stays
    paused: only pause and resume change that.

    The change is in effect on this broker when the call returns, on other brokers within 250 ms.
    `max_running` and `rate` require a queue with one lane. The number of lanes can be reduced only
    if the queue has no live jobs and no dead letters.

    Read-only members that GET returns are ignored if they are sent back unchanged; a changed one is
    rejected with 422.
    """
    faults = await edited.read_only_faults(partial(queues.get, name), members_if_missing={"name": name})
    return json_response(await queues.put(name, edited.body, access.caller, faults))


@router.patch("/queues/{name}", **operation(Queue, NotFound, *_INVALID_BODY, body=QueueConfig, scopes=MANAGE))
async def update_queue(name: QueueName, edited: PatchBody, queues: QueueServiceDep, access: AccessDep) -> Response:
    """Changes only the members that are sent. Merges `default_retry`, `retention` and `health`.

    To unset a member, use PUT. A paused queue stays paused: only pause and resume change that.

    Read-only members that GET returns are ignored if they are sent back unchanged; a changed one is
    rejected with 422.
    """
    faults = await edited.read_only_faults(partial(queues.get, name))
    return json_response(await queues.update(name, edited.body, access.caller, faults))


@router.delete("/queues/{name}", **operation(Queue, NotFound, QueueNotEmpty, scopes=MANAGE))
async def delete_queue(name: QueueName, queues: QueueServiceDep, _: NoBody, access: AccessDep) -> Response:
    """Deletes a queue that has no live jobs and no dead letters, and returns its last state.

    Finished jobs are kept.
    """
    return json_response(await queues.delete(name, access.caller))


@router.post("/queues/{name}/pause", **operation(Queue, NotFound, *_INVALID_BODY, body=PauseQueue, scopes=MANAGE))
async def pause_queue(
    name: QueueName, pause: Annotated[PauseQueue, body(PauseQueue)], queues: QueueServiceDep, access: AccessDep
) -> Response:
    """Stops deliveries. Jobs can still be enqueued.

    Pausing a paused queue only has an effect with a new reason: the new reason and the time of this
    call replace the old ones.
    """
    return json_response(await queues.pause(name, value_or(pause.reason, None), access.caller))


@router.post("/queues/{name}/resume", **operation(Queue, NotFound, scopes=MANAGE))
async def resume_queue(name: QueueName, queues: QueueServiceDep, _: NoBody, access: AccessDep) -> Response:
    """Resumes the delivery of jobs."""
    return json_response(await queues.resume(name, access.caller))
