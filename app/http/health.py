"""What operators and orchestrators ask of a process: is it alive, is it ready, what does it count, what are its limits."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from app.errors import Problem
from app.http.dependencies import service
from app.http.operation import KEY_PROBLEMS, OPEN, READ, guarded, operation, problems
from app.http.request_body import json_response
from app.http.schema_types import Int32, ResponseModel
from app.metrics import Metrics
from app.settings import Settings

router = APIRouter(tags=["operations"])

CHECK_SECONDS = 3  # a database that hangs must not make the question hang too
Probe = Callable[[], Awaitable[str]]


class Alive(ResponseModel):
    """The process runs."""

    status: str


class Check(ResponseModel):
    """One thing that has to be right."""

    name: str
    ok: bool
    detail: str


class Readiness(ResponseModel):
    """Whether to send requests here, and why not."""

    ready: bool
    checks: list[Check]


class Limits(ResponseModel):
    """What this broker takes."""

    max_payload_bytes: Int32
    max_batch_jobs: Int32
    max_batch_bytes: Int32
    max_body_bytes: Int32
    max_claim_jobs: Int32
    max_settlements: Int32
    max_wait_seconds: Int32
    min_lease_seconds: Int32
    max_lease_seconds: Int32
    max_delay_seconds: Int32
    max_queues: Int32
    max_workers_per_key: Int32
    max_list_items: Int32
    max_list_bytes: Int32


class Health:
    """The checks of /readyz, by name. Each returns a detail, or raises."""

    def __init__(self, settings: Settings, metrics: Metrics, checks: dict[str, Probe]) -> None:
        self.settings = settings
        self.metrics = metrics
        self._checks = checks
        self._asking: asyncio.Task[Readiness] | None = None

    async def readiness(self) -> Readiness:
        """Everybody may ask: those who ask at the same time get one answer, so that many of them cost the database no more than one."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="readiness")
        return await asyncio.shield(self._asking)

    async def _ask(self) -> Readiness:
        checks = [await _checked(name, check) for name, check in self._checks.items()]
        return Readiness(ready=all(check.ok for check in checks), checks=checks)


async def _checked(name: str, check: Probe) -> Check:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return Check(name=name, ok=True, detail=await check())
    except Problem as problem:
        return Check(name=name, ok=False, detail=problem.detail)
    except TimeoutError:
        return Check(name=name, ok=False, detail=f"no answer in {CHECK_SECONDS} s")


HealthDep = Annotated[Health, service(Health)]


@router.get("/livez", **operation(Alive, to=OPEN))
async def get_liveness() -> Response:
    """Whether the process runs. It does not ask the database: restarting us would not mend that."""
    return json_response(Alive(status="alive"))


@router.get("/readyz", **operation(Readiness, also={503: ("Not ready: some check failed.", Readiness)}, to=OPEN))
async def get_readiness(health: HealthDep) -> Response:
    """Whether requests should be sent here: the database answers, the schema is this release's, we are not draining."""
    readiness = await health.readiness()
    return json_response(
        readiness, status=200 if readiness.ready else 503, headers={} if readiness.ready else {"Retry-After": "1"}
    )


@router.get("/limits", **operation(Limits, to=OPEN))
async def get_limits(health: HealthDep) -> Response:
    """What this broker takes: sizes, counts, times."""
    settings = health.settings
    own = {name: getattr(settings, name) for name in Limits.__struct_fields__ if name != "max_list_items"}
    return json_response(Limits(**own, max_list_items=1000))


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses={200: {"description": "Prometheus text"}, **problems(*KEY_PROBLEMS)},
    **guarded(READ, everywhere=True),
)
async def get_metrics(health: HealthDep) -> Response:
    """What this process counts, for Prometheus."""
    return Response(generate_latest(health.metrics.registry), media_type=CONTENT_TYPE_LATEST)
