"""GET /queues."""

from typing import Annotated

from fastapi import APIRouter, Response

from app.queues.registry import Queues
from app.queues.schemas import Queue, QueueList
from app.web.bodies import answer
from app.web.contract import gives
from app.web.paging import Page, page_of
from app.web.rooms import of

router = APIRouter(tags=["queues"])


@router.get("/queues", **gives(QueueList))
async def list_queues(queues: Annotated[Queues, of(Queues)], page: Page) -> Response:
    """All queues in the order of their names."""
    await queues.refresh()
    after = page.after("name")
    found = [Queue(name=queue.name, created_at=queue.row.created_at) for queue in queues.known() if not after or queue.name > after]
    items, cursor = page_of(found, page.limit, lambda queue: {"name": queue.name})
    return answer(QueueList(items=items, next_cursor=cursor))
