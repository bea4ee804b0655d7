"""GET /workers, and POST /workers/{id}/drain, /stop and /resume."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from app.errors import NotFound
from app.http.bodies import NoBody, json_response
from app.http.dispatch import AccessDep, service
from app.http.operation import MANAGE, READ, operation
from app.http.pagination import Page
from app.http.schema_types import NameParameter
from app.workers.registry import WorkerRegistry
from app.workers.schemas import Worker, WorkerList

router = APIRouter(tags=["workers"])

WorkerRegistryDep = Annotated[WorkerRegistry, service("workers")]
WorkerId = Annotated[NameParameter, Path()]


@router.get("/workers", **operation(WorkerList, scopes=READ, all_queues=True))
async def list_workers(workers: WorkerRegistryDep, page: Page) -> Response:
    """Lists the workers that were active lately, with the number of leases that each holds.

    A worker is listed for a day after its last request, or for 7 days if its directive is `drain`
    or `stop`. At most `max_workers_per_key` workers per API key are listed (see `/limits`).
    """
    return (await workers.page(page)).response()


@router.post("/workers/{worker_id}/drain", **operation(Worker, NotFound, scopes=MANAGE, all_queues=True))
async def drain_worker(worker_id: WorkerId, workers: WorkerRegistryDep, _: NoBody, access: AccessDep) -> Response:
    """Asks a worker to finish the jobs that it holds and to claim no more."""
    return json_response(await workers.set_directive(worker_id, "drain", access.caller))


@router.post("/workers/{worker_id}/stop", **operation(Worker, NotFound, scopes=MANAGE, all_queues=True))
async def stop_worker(worker_id: WorkerId, workers: WorkerRegistryDep, _: NoBody, access: AccessDep) -> Response:
    """Asks a worker to stop: to release the jobs that it holds and to exit."""
    return json_response(await workers.set_directive(worker_id, "stop", access.caller))


@router.post("/workers/{worker_id}/resume", **operation(Worker, NotFound, scopes=MANAGE, all_queues=True))
async def resume_worker(worker_id: WorkerId, workers: WorkerRegistryDep, _: NoBody, access: AccessDep) -> Response:
    """Withdraws a drain or stop: the worker may claim jobs again."""
    return json_response(await workers.set_directive(worker_id, "run", access.caller))
