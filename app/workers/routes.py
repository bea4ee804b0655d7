"""What operators ask of workers."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from app.errors import NotFound
from app.web.bodies import NoBody, answer
from app.web.contract import MANAGE, READ, gives
from app.web.paging import Page
from app.web.rooms import of
from app.web.shapes import NameParameter
from app.workers.roster import Roster
from app.workers.schemas import Worker, WorkerList

router = APIRouter(tags=["workers"])

RosterRoom = Annotated[Roster, of(Roster)]
WorkerId = Annotated[NameParameter, Path()]


@router.get("/workers", **gives(WorkerList, to=READ, everywhere=True))
async def list_workers(roster: RosterRoom, page: Page) -> Response:
    """Workers that were active within a day, with the leases they hold. At most `max_workers_per_key` of each API key (see `/limits`)."""
    return (await roster.page(page)).response()


@router.post("/workers/{worker_id}/drain", **gives(Worker, NotFound, to=MANAGE, everywhere=True))
async def drain_worker(worker_id: WorkerId, roster: RosterRoom, _: NoBody) -> Response:
    """Asks a worker to finish what it holds and to take no more."""
    return answer(await roster.direct(worker_id, "drain"))


@router.post("/workers/{worker_id}/stop", **gives(Worker, NotFound, to=MANAGE, everywhere=True))
async def stop_worker(worker_id: WorkerId, roster: RosterRoom, _: NoBody) -> Response:
    """Asks a worker to stop: release what it holds and end."""
    return answer(await roster.direct(worker_id, "stop"))


@router.post("/workers/{worker_id}/resume", **gives(Worker, NotFound, to=MANAGE, everywhere=True))
async def resume_worker(worker_id: WorkerId, roster: RosterRoom, _: NoBody) -> Response:
    """Lets a worker run again."""
    return answer(await roster.direct(worker_id, "run"))
