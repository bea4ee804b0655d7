"""The environment in which policies are measured: the product's services without background
services.

The tables are empty, and there is one connection.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

import msgspec

from app.broker import Broker, build_broker
from app.enqueue.schemas import JobCreate, RawBatch
from app.http.authorization import FULL_ACCESS
from app.http.schema_types import Raw
from app.jobs.rows import ClaimedRow
from app.leases.schemas import ClaimJobs, Outcome, Settlement
from app.queues.schemas import QueueConfig
from app.server.exchange import Client
from app.settings import Settings
from bench.cost import BATCH, PAYLOAD
from bench.meter import Meter, Tally

T = TypeVar("T")
Json: TypeAlias = dict[str, Any]

PLAIN, LIMITED = "plain", "limited"
# No periodic scan over all groups during a measurement: it runs where it is needed.
SETTINGS = Settings.model_construct().model_copy(update={"pool_size": 1, "sweep_seconds": 3600.0, "notify": False})
EMPTY = """
TRUNCATE queues, lane_locks, jobs, finished_jobs, dead_letters, deduplication_keys, rate_limit_usage, group_cooldowns,
    dependents, finished_parents, stat_deltas, stat_totals
"""

_job_create = msgspec.json.Decoder(JobCreate)


class Size(NamedTuple):
    """Numbers of measured calls of one job and of 100 jobs, of warm-up calls, and of jobs in their way."""

    singles: int
    batches: int
    warm_up: int = 8  # Postgres plans a statement five times before it keeps a plan
    busy: int = 10_000
    running: int = 900

    def calls(self, n: int) -> int:
        return self.warm_up + (self.singles if n == 1 else self.batches)


class PolicyBench:
    """A queue with rules, and a plain one beside it."""

    def __init__(self, broker_services: Broker, size: Size) -> None:
        self.broker_services = broker_services
        self.size = size
        self.db = broker_services.infra.db
        self.meter = Meter(self.db)
        self._enqueuer = broker_services.enqueuer
        self._long_poll = broker_services.long_poll

    async def configure(self, rules: QueueConfig) -> None:
        """Configures the queue with rules first: rules that exist when a process starts are not
        applied again seconds later.
        """
        await self.broker_services.queue_service.put(LIMITED, rules, "bench")
        await self.broker_services.queue_service.put(PLAIN, QueueConfig(), "bench")

    async def lane(self) -> int:
        return (await self.broker_services.queues.get(LIMITED)).all_lanes[0]

    async def enqueue(self, jobs: Sequence[Json]) -> list[UUID]:
        """Enqueues one job, or a batch, in one call."""
        sent = [Raw(msgspec.json.encode(job)) for job in jobs]
        if len(jobs) == 1:
            return [(await self._enqueuer.enqueue(_job_create.decode(sent[0]), {}, None, FULL_ACCESS))[0].id]
        response = await self._enqueuer.enqueue_batch(RawBatch(jobs=sent), {}, None, "bench", FULL_ACCESS)
        return [result.job_id for result in response.results if isinstance(result.job_id, UUID)]

    async def enqueue_many(self, jobs: Sequence[Json], admissions: Tally | None = None) -> list[UUID]:
        """Enqueues in batches, and runs the group scheduler after each of them."""
        ids: list[UUID] = []
        for first in range(0, len(jobs), BATCH):
            batch = await self.enqueue(jobs[first : first + BATCH])
            await self.run_group_scheduler(admissions, len(batch))
            ids += batch
        return ids

    async def claim(self, queue: str, n: int) -> Sequence[ClaimedRow]:
        result = await self._long_poll.poll(
            ClaimJobs(queues=[queue], max_jobs=n, worker_id="worker-1"), None, Client(), FULL_ACCESS
        )
        assert len(result.rows) == n, f"{len(result.rows)} jobs, not {n}"
        return result.rows

    async def settle(self, jobs: Sequence[ClaimedRow], outcome: Outcome = Outcome.COMPLETE, **fields: Any) -> None:
        items = [Settlement(job_id=job.id, lease_token=str(job.lease_token), outcome=outcome, **fields) for job in jobs]
        await self.broker_services.settlements.settle(items, FULL_ACCESS)

    async def claim_and_complete(self, queue: str, n: int, path: Tally) -> None:
        await self.refresh()
        await self.settle(await self.meter.measure(path, n, lambda: self.claim(queue, n)))

    async def run_group_scheduler(self, admissions: Tally | None = None, jobs: int = 0) -> None:
        await self.refresh()
        await self.meter.measure(
            Tally() if admissions is None else admissions, jobs, self.broker_services.group_scheduler.run_once
        )

    async def refresh(self) -> None:
        """Refreshes what background services refresh several times a second, so that no measured call has to."""
        await self.broker_services.infra.config_versions.check_now()
        await self.broker_services.low_water_marks.run_once()


@asynccontextmanager
async def policy_bench(dsn: str, size: Size) -> AsyncIterator[PolicyBench]:
    broker_services = build_broker(SETTINGS, dsn)
    await broker_services.infra.db.open()
    try:
        await broker_services.infra.db.rows(EMPTY)
        await broker_services.infra.clock.refresh(broker_services.infra.db)
        bench = PolicyBench(broker_services, size)
        await bench.meter.attach()
        yield bench
    finally:
        await broker_services.infra.db.close()


def job(queue: str = LIMITED, **fields: Any) -> Json:
    return {"job_type": "bench", "queue": queue, "payload": Raw(PAYLOAD.encode()), **fields}
