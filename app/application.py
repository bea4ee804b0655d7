"""The composition root: the only file that knows everything."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from app import RELEASE
from app.api_keys import routes as api_key_routes
from app.broker import Broker, build_broker, start_services
from app.db import migrations
from app.db.schema_state import schema_problem
from app.dead_letters import routes as dead_letter_routes
from app.errors import DatabaseUnavailable, Problem
from app.explain import routes as explain_routes
from app.http import docs, health, openapi, problems
from app.http.dependencies import install_services
from app.http.fast_routes import FastRoute, FastRouter
from app.http.health import Health
from app.http.middleware import RequestMiddleware
from app.http.problems import Methods
from app.job_types import routes as job_type_routes
from app.jobs import routes as job_routes
from app.leases import routes as lease_routes
from app.log import log
from app.maintenance.services import ServiceRunner
from app.purging import routes as purging_routes
from app.queues import routes as queue_routes
from app.schedules import routes as schedule_routes
from app.settings import Settings
from app.stats import routes as stats_routes
from app.workers import routes as worker_routes

PACKAGES = (
    job_routes,
    lease_routes,
    worker_routes,
    dead_letter_routes,
    queue_routes,
    purging_routes,
    job_type_routes,
    schedule_routes,
    explain_routes,
    stats_routes,
    api_key_routes,
)

FINISH_SECONDS = 5  # for statements that are under way when everybody has left

DESCRIPTION = """A durable job broker: REST in front, Postgres behind.

Execution is at least once; at most one settlement of a job is accepted. A worker holds a job under a lease and proves with the lease token
that it still does; pass `deliveries` downstream as the epoch if an effect must not happen twice.

`HEAD` works wherever `GET` does. Each query parameter may be sent only once."""


class BrokerApp(FastAPI):
    """The envelope comes before the framework's own stack of middleware: it is around hot verbs too, which do without that."""

    request_middleware: RequestMiddleware

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        await self.request_middleware(scope, receive, send)

    async def framework(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__(scope, receive, send)


def create_app(settings: Settings, dsn: str) -> FastAPI:
    """Connects to nothing yet: that happens when the app starts."""
    broker = build_broker(settings, dsn)
    app = BrokerApp(
        title="Longshore",
        version=RELEASE,
        description=DESCRIPTION,
        lifespan=lambda _app: _lifespan(broker),
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=_operation_id,
        redirect_slashes=False,
    )
    app.state.settings = settings
    app.state.drain = broker.drain
    app.state.broker = broker
    app.state.authenticator = broker.authenticator
    app.state.border = broker.path_access.check
    install_services(app, *broker.rooms, Health(settings, broker.infra.metrics, _checks(broker)))
    problems.install(app)
    openapi.install(app)
    app.request_middleware = RequestMiddleware(app.framework, broker.infra.metrics)
    app.state.hot = FastRouter(app, app.request_middleware, _fast_routes())
    for room in PACKAGES:
        app.include_router(room.router)
    for desk in (health, docs):
        app.include_router(desk.router)
    app.state.methods = _methods(
        [*app.routes, *(route for part in (*PACKAGES, health, docs) for route in part.router.routes)]
    )
    return app


def _methods(routes: Iterable[BaseRoute]) -> Methods:
    """The methods of each path. HEAD is answered wherever GET is."""
    methods: dict[str, set[str]] = defaultdict(set)
    for route in routes:
        if isinstance(route, Route):
            methods[route.path] |= route.methods or set()
            methods[route.path] |= {"HEAD"} if "GET" in methods[route.path] else set()
    return dict(methods)


def _fast_routes() -> list[FastRoute]:
    return [route for room in PACKAGES for route in room.router.routes if isinstance(route, FastRoute)]


def _operation_id(route: APIRoute) -> str:
    return route.name


@asynccontextmanager
async def _lifespan(broker: Broker) -> AsyncIterator[None]:
    infra = broker.infra
    await infra.db.open()
    runner = ServiceRunner(infra)
    if (failure := await _clock_failure(broker)) is None:
        await _start(broker, runner)
    else:
        log.warning("database unreachable, waiting for it", detail=infra.db.explain_to_operator(failure))
        runner.start_task("await the database", lambda: _start_when_reachable(broker, runner))
    try:
        yield
    finally:
        await runner.stop()
        with suppress(Exception):
            async with asyncio.timeout(FINISH_SECONDS):
                await broker.finish()
        with suppress(Exception):
            await broker.stats.write_durations()
        await infra.db.close()


async def _clock_failure(broker: Broker) -> DatabaseUnavailable | None:
    try:
        await broker.infra.clock.refresh(broker.infra.db)
    except DatabaseUnavailable as failure:
        return failure
    return None


async def _start_when_reachable(broker: Broker, runner: ServiceRunner) -> None:
    """A broker may start before its database. Nothing is swept by any other clock than the database's."""
    while await _clock_failure(broker) is not None:  # noqa: ASYNC110 (a database sets no event)
        await asyncio.sleep(0.25)
    log.info("database reached")
    await _start(broker, runner)


async def _start(broker: Broker, runner: ServiceRunner) -> None:
    """Starts the background services on any schema, because it may be migrated later. A log line says what is missing until then."""
    start_services(broker, runner)
    try:
        outdated = schema_problem(await migrations.current_revision(broker.infra.db))
    except DatabaseUnavailable as error:
        outdated = error.detail
    if outdated is not None:
        log.warning("database not ready", detail=outdated)


def _checks(broker: Broker) -> dict[str, health.Probe]:
    async def database() -> str:
        await broker.infra.db.value("SELECT 1")
        return "answers"

    async def schema() -> str:
        """A newer schema is fine: migrations come before the release that needs them."""
        at = await migrations.current_revision(broker.infra.db)
        if (outdated := schema_problem(at)) is not None:
            raise Problem(outdated)
        return f"at {at}"

    async def serving() -> str:
        if broker.waiting.draining:
            raise Problem("draining")
        return "not draining"

    return {
        "database": database,
        "durability": broker.infra.inspection.to_response,
        "schema": schema,
        "serving": serving,
    }
