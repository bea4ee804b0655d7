"""What operators ask of workers."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from app.errors import NotFound
from app.http.dependencies import service
from app.http.operation import MANAGE, READ, operation
from app.http.pagination import Page
from app.http.request_body import NoBody, json_response
from app.http.schema_types import NameParameter
from app.workers.registry import WorkerRegistry
from app.workers.schemas import Worker, WorkerList

router = APIRouter(tags=["workers"])

WorkerRegistryDep = Annotated[WorkerRegistry, service(WorkerRegistry)]
WorkerId = Annotated[NameParameter, Path()]


@router.get("/workers", **operation(WorkerList, to=READ, everywhere=True))
async def list_workers(workers: WorkerRegistryDep, page: Page) -> Response:
    """Workers that were active within a day, with the leases they hold. At most `max_workers_per_key` of each API key (see `/limits`)."""
    return (await workers.page(page)).response()


@router.post("/workers/{worker_id}/drain", **operation(Worker, NotFound, to=MANAGE, everywhere=True))
async def drain_worker(worker_id: WorkerId, workers: WorkerRegistryDep, _: NoBody) -> Response:
    """Asks a worker to finish what it holds and to take no more."""
    return json_response(await workers.direct(worker_id, "drain"))


@router.post("/workers/{worker_id}/stop", **operation(Worker, NotFound, to=MANAGE, everywhere=True))
async def stop_worker(worker_id: WorkerId, workers: WorkerRegistryDep, _: NoBody) -> Response:
    """Asks a worker to stop: release what it holds and end."""
    return json_response(await workers.direct(worker_id, "stop"))


@router.post("/workers/{worker_id}/resume", **operation(Worker, NotFound, to=MANAGE, everywhere=True))
async def resume_worker(worker_id: WorkerId, workers: WorkerRegistryDep, _: NoBody) -> Response:
    """Lets a worker run again."""
    return json_response(await workers.direct(worker_id, "run"))
