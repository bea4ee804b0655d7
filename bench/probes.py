"""Measurements that are no rates: wake-ups, parked polls, reads with millions of jobs, and a lone
request.

Each uses a database and brokers of its own.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from statistics import median
from unittest.mock import patch

from app.broker import Broker, build_broker
from app.enqueue import insert_batcher
from app.enqueue.schemas import JobCreate
from app.http.authorization import FULL_ACCESS
from app.http.schema_types import Raw
from bench import postgres
from bench.brokers import Brokers, load
from bench.cost import PAYLOAD
from bench.load.order import QUEUE, Figures, Order
from bench.load.polls import WAIT_SECONDS
from bench.meter import Meter, Tally
from bench.scene import SETTINGS

SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'longshore'"
FILL = """
WITH queue AS (SELECT id * 256 AS lane FROM queues WHERE name = $1),
counted AS (INSERT INTO stat_deltas (lane, ready, enqueued) SELECT lane, $2::int, $2::int FROM queue),
added AS (
    INSERT INTO jobs (lane, id, state, run_at, priority, max_attempts, job_type, payload)
    SELECT lane, uuidv7(), 'ready', now(), 0, 5, 'bench', $3
    FROM queue, generate_series(1, $2::int)
    RETURNING lane, id
)
INSERT INTO ready_spans (lane, priority, first_id, last_id)
SELECT lane, 0, (array_agg(id ORDER BY id))[1], (array_agg(id ORDER BY id DESC))[1]
FROM (SELECT lane, id, row_number() OVER (ORDER BY id) / 1000 AS part FROM added) AS numbered
GROUP BY lane, part
"""
ONE_JOB = JobCreate(job_type="bench", queue=QUEUE, payload=Raw(PAYLOAD.encode()))
CHUNK = 100_000
SMALL_TABLE_JOBS = 1_000
CALLS = 50


@dataclass(frozen=True, slots=True)
class Size:
    """Numbers of samples, polls and jobs, and the seconds for which parked polls are measured."""

    samples: int = 3_000
    waiting: int = 1_000
    polls: int = 5_000
    jobs: int = 5_000_000
    seconds: float = 10.0
    lone: int = 1_000


@dataclass(frozen=True, slots=True)
class ProbeContext:
    """What a probe needs: running brokers on an empty database, the sizes, and a function that
    prints progress.
    """

    dsn: str
    brokers: Brokers
    size: Size
    show: Callable[[str], None]

    async def load(self, kind: str, *, connections: int = 1, jobs: int = 0, seconds: float = 0.0) -> Figures:
        return await load(
            Order(
                kind=kind,
                ports=self.brokers.ports,
                connections=connections,
                jobs=jobs,
                seconds=seconds,
                server=self.brokers.pids,
            )
        )


@asynccontextmanager
async def probe_context(
    dsn: str, name: str, processes: int, size: Size, show: Callable[[str], None]
) -> AsyncIterator[ProbeContext]:
    async with postgres.temporary_database(dsn, name) as database_dsn:
        await postgres.migrate(database_dsn)
        brokers = Brokers(database_dsn, max_wait_seconds=str(WAIT_SECONDS))
        try:
            brokers.start(processes)
            yield ProbeContext(database_dsn, brokers, size, show)
        finally:
            brokers.stop()


async def wake(context: ProbeContext) -> Figures:
    """Parks polls at the last broker, and enqueues jobs at the first."""
    return await context.load("wake", connections=context.size.waiting, jobs=context.size.samples)


async def parked(context: ProbeContext) -> Figures:
    async with postgres.connected(context.dsn) as connection:
        before: int = await connection.fetchval(SESSIONS)
        polling = asyncio.create_task(
            context.load("parked", connections=context.size.polls, seconds=context.size.seconds)
        )
        peak = before
        while not polling.done():
            peak = max(peak, await connection.fetchval(SESSIONS))
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(polling), 0.5)
    return await polling | {"sessions_before": before, "sessions": peak}


async def lone(context: ProbeContext) -> Figures:
    """Measures a lone enqueue over HTTP.

    Measures it in this process, too, in turns with a broker in which no call shares a statement.
    """
    shares = build_broker(SETTINGS, context.dsn)
    with patch.object(insert_batcher, "MAX_SHARED_JOBS", 1):
        alone = build_broker(SETTINGS, context.dsn)
    figures = await context.load("lone", jobs=context.size.lone)
    async with _open(shares), _open(alone):
        durations: dict[str, list[float]] = {"shares": [], "alone": []}
        for _ in range(context.size.lone):
            for name, broker_services in (("shares", shares), ("alone", alone)):
                began = time.perf_counter()
                await broker_services.enqueuer.enqueue(ONE_JOB, {}, None, FULL_ACCESS)
                durations[name].append(time.perf_counter() - began)
    return figures | {f"{name}_p50_ms": median(times[len(times) // 10 :]) * 1000 for name, times in durations.items()}


@asynccontextmanager
async def _open(broker_services: Broker) -> AsyncIterator[None]:
    await broker_services.infra.db.open()
    try:
        await broker_services.infra.clock.refresh(broker_services.infra.db)
        yield
    finally:
        await broker_services.infra.db.close()


async def reads(context: ProbeContext) -> Figures:
    """Measures reads with a thousand jobs, and with millions."""
    await context.load("lone", jobs=SMALL_TABLE_JOBS)
    small = await _read(context)
    async with postgres.connected(context.dsn) as connection:
        for first in range(0, context.size.jobs, CHUNK):
            context.show(f"filling in: {first:,} of {context.size.jobs:,} jobs")
            await connection.execute(FILL, QUEUE, min(CHUNK, context.size.jobs - first), "{}".ljust(200))
        await connection.execute("VACUUM ANALYZE jobs")
    many = await _read(context)
    return {f"{name}_few": value for name, value in small.items()} | {
        f"{name}_many": value for name, value in many.items()
    }


async def _read(context: ProbeContext) -> Figures:
    """Time over HTTP; buffers in this process, on one connection that does nothing else."""
    broker_services = build_broker(SETTINGS, context.dsn)
    async with _open(broker_services):
        return await context.load("reads", jobs=CALLS) | await _buffers(broker_services)


async def _buffers(broker_services: Broker) -> Figures:
    meter = Meter(broker_services.infra.db)
    await meter.attach()
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "stats": lambda: broker_services.stats.all_stats(FULL_ACCESS),
        "queue_stats": lambda: broker_services.stats.queue_stats(QUEUE, FULL_ACCESS),
    }
    figures: Figures = {}
    for name, call in calls.items():
        tally = Tally()
        for _ in range(CALLS):
            await meter.measure(tally, 1, call)
        figures[f"{name}_buffers"] = tally.per_call("buffers")
    return figures


# Name: number of broker processes, and the probe.
PROBES: dict[str, tuple[int, Callable[[ProbeContext], Awaitable[Figures]]]] = {
    "lone": (1, lone),
    "wake_one": (1, wake),
    "wake_across": (2, wake),
    "parked": (1, parked),
    "reads": (1, reads),
}


async def run(dsn: str, name: str, size: Size, show: Callable[[str], None]) -> Figures:
    processes, probe = PROBES[name]
    async with probe_context(dsn, name, processes, size, show) as context:
        return await probe(context)
