"""Queues as operators and deployments configure them."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Response

from app.errors import MalformedJson, NotFound, QueueLimit, QueueNotEmpty, ValidationFailed
from app.http.authentication import AccessDep
from app.http.dependencies import service
from app.http.operation import MANAGE, READ, operation
from app.http.pagination import Page
from app.http.read_only import Edited
from app.http.request_body import NoBody, body, edited_body, json_response
from app.http.schema_types import NameParameter, value_or
from app.queues.schemas import PauseQueue, Queue, QueueConfig, QueueList
from app.queues.service import QueueService

router = APIRouter(tags=["queues"])

QueueServiceDep = Annotated[QueueService, service(QueueService)]
QueueName = Annotated[NameParameter, Path()]
Config = Annotated[
    QueueConfig, body(QueueConfig, null_hint="; PATCH removes no rule, but a PUT without the member does")
]
EditedQueue = Annotated[Edited[QueueConfig], edited_body(QueueConfig, Queue, by_pause=("paused_at", "paused_reason"))]
_BAD = (MalformedJson, ValidationFailed)


@router.get("/queues", **operation(QueueList, ValidationFailed, to=READ))
async def list_queues(queue_service: QueueServiceDep, page: Page, access: AccessDep) -> Response:
    """All queues that your key reaches, with their configuration, in the order of their names."""
    return (await queue_service.page(page, access)).response()


@router.get("/queues/{name}", **operation(Queue, NotFound, to=READ))
async def get_queue(name: QueueName, queue_service: QueueServiceDep) -> Response:
    """One queue with its configuration: what was set, and always `lanes` and `paused`."""
    return json_response(await queue_service.get(name))


@router.put("/queues/{name}", **operation(Queue, QueueLimit, *_BAD, takes=QueueConfig, to=MANAGE))
async def put_queue(name: QueueName, sent: EditedQueue, queue_service: QueueServiceDep) -> Response:
    """Makes the queue be configured like this: what is absent is no longer set, only `lanes` stay. Makes the queue if there is none.

    A paused queue stays paused: only pause and resume change that.

    In force here when this is answered, elsewhere within 250 ms. `max_running` and `rate` need one lane. There can be fewer lanes than
    before only if the queue has no live jobs and no dead letters.

    Read-only members that GET returns are ignored when they are sent back unchanged; a changed one is 422.
    """
    await sent.check(name, partial(queue_service.get, name))
    return json_response(await queue_service.put(name, sent.body))


@router.patch("/queues/{name}", **operation(Queue, NotFound, *_BAD, takes=QueueConfig, to=MANAGE))
async def update_queue(name: QueueName, config: Config, queue_service: QueueServiceDep) -> Response:
    """Changes only the fields that are sent, also within `default_retry`, `retention` and `health`. To unset a field use PUT.

    A paused queue stays paused: only pause and resume change that.
    """
    return json_response(await queue_service.update(name, config))


@router.delete("/queues/{name}", **operation(Queue, NotFound, QueueNotEmpty, to=MANAGE))
async def delete_queue(name: QueueName, queue_service: QueueServiceDep, _: NoBody) -> Response:
    """Removes a queue without live jobs and dead letters, and answers with the queue as it was. Its finished jobs stay."""
    return json_response(await queue_service.delete(name))


@router.post("/queues/{name}/pause", **operation(Queue, NotFound, *_BAD, takes=PauseQueue, to=MANAGE))
async def pause_queue(
    name: QueueName, pause: Annotated[PauseQueue, body(PauseQueue)], queue_service: QueueServiceDep
) -> Response:
    """Hands out nothing from now on; jobs are still taken. Pausing again changes nothing, unless it gives another reason."""
    return json_response(await queue_service.pause(name, value_or(pause.reason, None)))


@router.post("/queues/{name}/resume", **operation(Queue, NotFound, to=MANAGE))
async def resume_queue(name: QueueName, queue_service: QueueServiceDep, _: NoBody) -> Response:
    """Hands out jobs again."""
    return json_response(await queue_service.resume(name))
