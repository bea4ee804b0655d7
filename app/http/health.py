"""Health checks, metrics and limits of one process, for operators and orchestrators."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from app.errors import Problem
from app.http.bodies import json_response
from app.http.dispatch import make_resolver
from app.http.operation import KEY_PROBLEMS, PUBLIC, READ, operation, problems, require_key
from app.http.schema_types import Int32, ResponseModel
from app.metrics import Metrics
from app.settings import Settings

router = APIRouter(tags=["operations"])

CHECK_SECONDS = 3  # a database that hangs must not make /readyz hang too
HealthCheck = Callable[[], Awaitable[str]]


class Alive(ResponseModel):
    """The process is running."""

    status: str


class Check(ResponseModel):
    """The result of one health check."""

    name: str
    ok: bool
    detail: str


class Readiness(ResponseModel):
    """Whether this process is ready for requests, and the result of each check."""

    ready: bool
    checks: list[Check]


class Limits(ResponseModel):
    """The limits of this broker."""

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
    max_polled_types_per_key: Int32
    max_list_items: Int32
    max_list_bytes: Int32


class Health:
    """Runs the health checks of /readyz. Each check is a function that returns a detail for the
    response, or raises a Problem if it fails."""

    def __init__(self, settings: Settings, metrics: Metrics, checks: dict[str, HealthCheck]) -> None:
        self.settings = settings
        self.metrics = metrics
        self._checks = checks
        self._running: asyncio.Task[Readiness] | None = None

    async def readiness(self) -> Readiness:
        """Runs all checks. Concurrent calls share one run, because the route is public: many calls
        must not cost the database more than one call does."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run_checks(), name="readiness")
        return await asyncio.shield(self._running)

    async def _run_checks(self) -> Readiness:
        checks = [await _run_check(name, check) for name, check in self._checks.items()]
        return Readiness(ready=all(check.ok for check in checks), checks=checks)


async def _run_check(name: str, check: HealthCheck) -> Check:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return Check(name=name, ok=True, detail=await check())
    except Problem as problem:
        return Check(name=name, ok=False, detail=problem.detail)
    except TimeoutError:
        return Check(name=name, ok=False, detail=f"no response within {CHECK_SECONDS} s")


def _health(request: Request) -> Health:
    health: Health = request.app.state.health
    return health


HealthDep = Annotated[Health, make_resolver(_health)]


@router.get("/livez", **operation(Alive, scopes=PUBLIC))
async def get_liveness() -> Response:
    """Whether the process is running.

    Does not query the database, because restarting the broker would not repair the database.
    """
    return json_response(Alive(status="alive"))


@router.get(
    "/readyz",
    **operation(Readiness, other_responses={503: ("Not ready: a check failed.", Readiness)}, scopes=PUBLIC),
)
async def get_readiness(health: HealthDep) -> Response:
    """Whether to send requests to this process.

    It is ready if the database answers and is durable, its schema fits this release, and the broker
    is not draining.
    """
    readiness = await health.readiness()
    return json_response(
        readiness, status=200 if readiness.ready else 503, headers={} if readiness.ready else {"Retry-After": "1"}
    )


@router.get("/limits", **operation(Limits, scopes=PUBLIC))
async def get_limits(health: HealthDep) -> Response:
    """The limits of this broker: sizes, counts and times."""
    settings = health.settings
    limits = {name: getattr(settings, name) for name in Limits.__struct_fields__ if name != "max_list_items"}
    return json_response(Limits(**limits, max_list_items=1000))


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses={200: {"description": "Prometheus text"}, **problems(*KEY_PROBLEMS)},
    **require_key(READ, all_queues=True),
)
async def get_metrics(health: HealthDep) -> Response:
    """The metrics of this process, for Prometheus."""
    return Response(generate_latest(health.metrics.registry), media_type=CONTENT_TYPE_LATEST)
