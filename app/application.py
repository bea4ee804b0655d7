"""Builds the FastAPI application: routers, fast routes, readiness checks and lifespan.

`_lifespan` does the following:

- start, if the database is reachable: open the connection pool, start the background services
- start, if the database is unreachable: open the connection pool, serve requests, wait for the
  database, then start the background services
- SIGTERM: stop the background services, finish running statements, requeue the jobs of abandoned
  leases, write statistics, close the pool
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Route

from app import RELEASE
from app.api_keys import routes as api_key_routes
from app.broker import Broker, build_broker
from app.db import distribution, migrations
from app.db.schema_state import schema_problem
from app.dead_letters import routes as dead_letter_routes
from app.enqueue import routes as enqueue_routes
from app.errors import DatabaseUnavailable, Problem
from app.explain import routes as explain_routes
from app.http import docs, health, openapi, problems
from app.http.dispatch import Dispatcher, FastRoute
from app.http.health import Health
from app.http.problems import Methods
from app.job_types import routes as job_type_routes
from app.jobs import purge_routes
from app.jobs import routes as job_routes
from app.leases import routes as lease_routes
from app.log import log
from app.maintenance.services import ServiceRunner
from app.queues import routes as queue_routes
from app.schedules import routes as schedule_routes
from app.settings import Settings
from app.stats import routes as stats_routes
from app.workers import routes as worker_routes

ROUTE_MODULES = (
    enqueue_routes,
    job_routes,
    lease_routes,
    worker_routes,
    dead_letter_routes,
    queue_routes,
    purge_routes,
    job_type_routes,
    schedule_routes,
    explain_routes,
    stats_routes,
    api_key_routes,
)

DESCRIPTION = """A durable job broker: REST in front, Postgres behind.

Execution is at least once; the broker accepts at most one settlement of a job. A worker holds a
job under a lease and proves it with the lease token. If an effect must not happen twice, pass
`deliveries` downstream as a fencing token.

`HEAD` works wherever `GET` does. Each query parameter may be sent only once."""


def create_app(settings: Settings, dsn: str) -> FastAPI:
    """Builds the application. It connects to the database only when its lifespan starts."""
    broker = build_broker(settings, dsn)
    app = FastAPI(
        title="Longshore",
        version=RELEASE,
        description=DESCRIPTION,
        lifespan=lambda _app: _lifespan(broker),
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=_operation_id,
        redirect_slashes=False,
    )
    app.state.broker = broker
    app.state.health = Health(settings, broker.infra.metrics, _checks(broker))
    app.state.dispatcher = Dispatcher(app, broker.infra.metrics, _fast_routes())
    problems.install(app)
    openapi.install(app)
    for module in (*ROUTE_MODULES, health, docs):
        app.include_router(module.router)
    app.state.methods = _methods(
        [*app.routes, *(route for module in (*ROUTE_MODULES, health, docs) for route in module.router.routes)]
    )
    return app


def _methods(routes: Iterable[BaseRoute]) -> Methods:
    """Returns the HTTP methods that each path supports. HEAD works wherever GET does."""
    methods: dict[str, set[str]] = defaultdict(set)
    for route in routes:
        if isinstance(route, Route):
            methods[route.path] |= route.methods or set()
            methods[route.path] |= {"HEAD"} if "GET" in methods[route.path] else set()
    return dict(methods)


def _fast_routes() -> list[FastRoute]:
    return [route for module in ROUTE_MODULES for route in module.router.routes if isinstance(route, FastRoute)]


def _operation_id(route: APIRoute) -> str:
    return route.name


@asynccontextmanager
async def _lifespan(broker: Broker) -> AsyncIterator[None]:
    infra = broker.infra
    await infra.db.open()
    runner = ServiceRunner(infra=infra)
    if (failure := await _clock_failure(broker)) is None:
        await _start(broker, runner)
    else:
        log.warning("database unreachable, waiting for it", detail=infra.db.explain_to_operator(failure))
        runner.start_task("await the database", lambda: _start_when_reachable(broker, runner))
    try:
        yield
    finally:
        await runner.stop()
        await broker.finish()
        await infra.db.close()


async def _clock_failure(broker: Broker) -> DatabaseUnavailable | None:
    try:
        await broker.infra.clock.refresh(broker.infra.db)
    except DatabaseUnavailable as failure:
        return failure
    return None


async def _start_when_reachable(broker: Broker, runner: ServiceRunner) -> None:
    """Waits for the database, because a broker may start before its database. Then starts the
    background services, which need the database's clock."""
    while await _clock_failure(broker) is not None:  # noqa: ASYNC110 (a database sets no event)
        await asyncio.sleep(0.25)
    log.info("database reached")
    await _start(broker, runner)


async def _start(broker: Broker, runner: ServiceRunner) -> None:
    """Starts the background services, even if the schema is outdated, because it may be migrated
    later. Logs once that the schema is outdated."""
    broker.start(runner)
    try:
        problem = schema_problem(await migrations.current_revision(broker.infra.db))
    except DatabaseUnavailable as error:
        problem = error.detail
    if problem is not None:
        log.warning("database not ready", detail=problem)


def _checks(broker: Broker) -> dict[str, health.HealthCheck]:
    async def database() -> str:
        await broker.infra.db.value("SELECT 1")
        return "answers"

    async def schema() -> str:
        """Fails if the schema is older than the schema of this release. Accepts a newer schema,
        because migrations run before the release that needs them is deployed."""
        revision = await migrations.current_revision(broker.infra.db)
        if (problem := schema_problem(revision)) is not None:
            raise Problem(problem)
        # A table that only the coordinator has does not make the broker unready, because the
        # statements without that table work.
        if tables := await distribution.undistributed(broker.infra.db):
            return f"at {revision}; degraded: not distributed: {', '.join(tables)}: run `python -m app distribute`"
        return f"at {revision}"

    async def serving() -> str:
        if broker.pollers.draining:
            raise Problem("draining")
        return "not draining"

    return {
        "database": database,
        "durability": broker.infra.server_checks.to_response,
        "schema": schema,
        "serving": serving,
    }
