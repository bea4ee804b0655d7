"""The composition root: the only file that knows everything."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute

from app.db import migrations, versions
from app.db.clock import DatabaseClock
from app.db.floor import Floor
from app.db.lanes import IdMint
from app.db.pool import Database
from app.db.versions import Versions
from app.db.wakeups import Wakeups
from app.dead_letters import routes as dead_letter_routes
from app.dead_letters.reviving import Reviving
from app.errors import DatabaseUnavailable, Problem
from app.jobs import routes as job_routes
from app.jobs.changing import Changing
from app.jobs.intake import Intake
from app.jobs.signals import Signals
from app.jobs.watching import Watching
from app.leases import routes as lease_routes
from app.leases.beating import Beating
from app.leases.claiming import Claiming
from app.leases.settling import Settling
from app.leases.times import Times
from app.leases.waiting import WaitingRoom
from app.maintenance.chores import Expiry, Look, Partitions, Promotion, Retention
from app.maintenance.runner import Chore, Runner
from app.metrics import Metrics
from app.queues import routes as queue_routes
from app.queues.registry import Queues
from app.settings import Settings
from app.stats import routes as stats_routes
from app.stats.reckoning import Reckoning
from app.web import docs, health, openapi, problems
from app.web.headers import refuse_unknown_parameters
from app.web.health import Health
from app.web.middleware import Envelope
from app.web.rooms import furnish
from app.workers import routes as worker_routes
from app.workers.roster import Roster

DESCRIPTION = """A durable job broker: REST in front, Postgres behind.

Execution is at least once; at most one settlement of a job is accepted. A worker holds a job under a lease and proves with the lease token
that it still does; pass `deliveries` downstream as the epoch if an effect must not happen twice."""


@dataclass(frozen=True, slots=True)
class House:
    """Every room, standing on one floor."""

    floor: Floor
    queues: Queues
    signals: Signals
    watching: Watching
    waiting: WaitingRoom
    roster: Roster
    settling: Settling
    reviving: Reviving
    reckoning: Reckoning
    rooms: tuple[object, ...]

    def drain(self) -> None:
        """Parked polls and watchers are answered now; /readyz says no from here on."""
        self.waiting.drain()
        self.watching.drain()


def build(settings: Settings, dsn: str) -> House:
    metrics = Metrics()
    clock = DatabaseClock()
    listen = settings.listen_url.get_secret_value() if settings.listen_url else dsn
    wakeups = Wakeups(listen, metrics, enabled=settings.notify)
    db = Database(dsn, settings, metrics)
    floor = Floor(settings, metrics, db, clock, IdMint(clock.now), wakeups, Versions(db, wakeups))
    queues, signals, times, waiting, roster = Queues(floor), Signals(wakeups), Times(), WaitingRoom(metrics), Roster(floor)
    watching = Watching(floor, queues, signals)
    settling = Settling(floor, queues, signals, times)
    reviving = Reviving(floor, queues, signals, watching)
    reckoning = Reckoning(floor, queues, waiting, times)
    rooms = (
        queues,
        Intake(floor, queues, signals),
        watching,
        Changing(floor, queues, signals, watching),
        roster,
        settling,
        Claiming(floor, queues, waiting, settling, roster, times),
        Beating(floor, settling, roster),
        reviving,
        reckoning,
    )
    return House(floor, queues, signals, watching, waiting, roster, settling, reviving, reckoning, rooms)


def create_app(settings: Settings, dsn: str) -> FastAPI:
    """Connects to nothing yet: that happens when the app starts."""
    house = build(settings, dsn)
    app = FastAPI(
        title="Longshore",
        version="0.1.0",
        description=DESCRIPTION,
        lifespan=lambda _app: _lived_in(house),
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=_operation_id,
        redirect_slashes=False,
    )
    app.state.settings = settings
    app.state.drain = house.drain
    app.state.house = house
    furnish(app, *house.rooms, Health(settings, house.floor.metrics, _checks(house)))
    problems.install(app)
    openapi.install(app)
    app.add_middleware(Envelope, metrics=house.floor.metrics)
    for room in (job_routes, lease_routes, worker_routes, dead_letter_routes, queue_routes, stats_routes):
        app.include_router(room.router, dependencies=[Depends(refuse_unknown_parameters)])
    for desk in (health, docs):  # a probe may carry what it likes
        app.include_router(desk.router)
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name


@asynccontextmanager
async def _lived_in(house: House) -> AsyncIterator[None]:
    floor = house.floor
    await floor.db.open()
    runner = Runner(floor)
    if await _time_is_known(house):
        _start_chores(house, runner)
    else:
        runner.start_task("await the database", lambda: _start_later(house, runner))
    try:
        yield
    finally:
        await runner.stop()
        with suppress(Exception):
            await house.reckoning.write_times()
        await floor.db.close()


async def _time_is_known(house: House) -> bool:
    with suppress(DatabaseUnavailable):
        await house.floor.clock.refresh(house.floor.db)
    return house.floor.clock.known


async def _start_later(house: House, runner: Runner) -> None:
    """A broker may start before its database. Nothing is swept by any other clock than the database's."""
    while not await _time_is_known(house):  # noqa: ASYNC110 (a database sets no event)
        await asyncio.sleep(0.25)
    _start_chores(house, runner)


def _start_chores(house: House, runner: Runner) -> None:
    floor, settings = house.floor, house.floor.settings
    promotion = Promotion(floor, house.signals)
    look = Look(floor, house.queues, house.waiting)
    runner.start(Chore("clock", lambda: floor.clock.refresh(floor.db), 1.0))
    look_at_versions = runner.start(Chore("versions", floor.versions.run_once, versions.LOOK_SECONDS))
    runner.start(Chore("expiry", Expiry(floor, house.settling).run_once, settings.sweep_seconds))
    promotion.nudge = runner.start(Chore("promotion", promotion.run_once, settings.sweep_seconds))
    look_now = runner.start(Chore("look", look.run_once, settings.poll_seconds))
    runner.start(Chore("roster", house.roster.exchange, 1.0))
    runner.start(Chore("times", house.reckoning.write_times, 1.0))
    runner.start(Chore("fold", house.reckoning.fold, 1.0, led=True))
    runner.start(Chore("partitions", Partitions(floor).run_once, 60.0, led=True))
    runner.start(Chore("retention", Retention(floor, house.reviving).run_once, 60.0, led=True))
    runner.start_task("wakeups", floor.wakeups.run)
    house.roster.on_directive = house.waiting.wake_worker

    def on_ready(queue_id: int | None, job_types: Iterable[str | None]) -> None:
        if queue_id in (None, versions.TOPIC):
            look_at_versions()
        name = None if queue_id is None else house.queues.name_of_id(queue_id)
        if queue_id == versions.TOPIC:
            return
        if name is None:
            look_now()  # a queue that we have not heard of, or word that some words were missed
        else:
            house.waiting.wake(name, job_types)

    house.signals.on_ready = on_ready


def _checks(house: House) -> dict[str, health.Probe]:
    async def database() -> str:
        version: str = await house.floor.db.value("SHOW server_version")
        return f"Postgres {version}"

    async def schema() -> str:
        """A newer schema is fine: migrations come before the release that needs them."""
        migrated = await house.floor.db.value("SELECT to_regclass('alembic_version') IS NOT NULL")
        at = await house.floor.db.value("SELECT version_num FROM alembic_version") if migrated else None
        if at in migrations.older_than_head():
            raise Problem(f"the schema is at {at or 'nothing'}, this release needs {migrations.head()}: run `python -m app migrate`")
        return f"at {at}"

    async def serving() -> str:
        if house.waiting.draining:
            raise Problem("draining")
        return "not draining"

    return {"database": database, "schema": schema, "serving": serving}
