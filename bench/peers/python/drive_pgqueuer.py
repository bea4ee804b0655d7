"""PgQueuer: enqueue with one job or with lists, and its queue manager on an asyncpg pool."""

import json
from collections.abc import Callable

import asyncpg
from load import PAYLOAD, QUEUE, Params, run_driver  # type: ignore[import-not-found] # beside this file, which is run as a program
from pgqueuer.db import AsyncpgPoolDriver  # type: ignore[import-not-found]
from pgqueuer.models import Job  # type: ignore[import-not-found]
from pgqueuer.qm import QueueManager  # type: ignore[import-not-found]
from pgqueuer.queries import Queries  # type: ignore[import-not-found]

BODY = json.dumps(PAYLOAD).encode()


class Driver:
    async def open(self, params: Params) -> None:
        self.params = params
        self.pool = await asyncpg.create_pool(params.address, min_size=params.pool, max_size=params.pool)
        self.queries = Queries(AsyncpgPoolDriver(self.pool))

    async def prepare(self) -> None:
        await self.queries.install()

    async def empty(self) -> None:
        await self.pool.execute("TRUNCATE pgqueuer, pgqueuer_log, pgqueuer_statistics")

    async def send(self) -> None:
        await self.queries.enqueue(QUEUE, BODY)

    async def send_many(self, count: int) -> None:
        await self.queries.enqueue([QUEUE] * count, [BODY] * count, [0] * count)

    async def work(self, handled: Callable[[], None]) -> None:
        manager = QueueManager(self.queries)

        async def handle(job: Job) -> None:
            handled()

        manager.entrypoint(QUEUE)(handle)
        await manager.run(batch_size=self.params.prefetch, max_concurrent_tasks=self.params.concurrency or None)

    async def left(self) -> int:
        count = await self.pool.fetchval("SELECT count(*) FROM pgqueuer")
        return int(count)


run_driver(Driver())
