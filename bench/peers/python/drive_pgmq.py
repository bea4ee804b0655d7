"""pgmq as bare SQL: asyncpg calls its functions on pooled connections, because it has no worker."""

import asyncio
import json
from collections.abc import Callable
from importlib import resources

import asyncpg
from load import PAYLOAD, QUEUE, Params, run_driver  # type: ignore[import-not-found] # beside this file, which is run as a program

BODY = json.dumps(PAYLOAD)
LEASE_SECONDS = 60


class Driver:
    async def open(self, params: Params) -> None:
        self.params = params
        self.pool = await asyncpg.create_pool(params.address, min_size=params.pool, max_size=params.pool)

    async def prepare(self) -> None:
        await self.pool.execute((resources.files("pgmq") / "sql" / "pgmq.sql").read_text())
        await self.pool.execute("SELECT pgmq.create($1)", QUEUE)

    async def empty(self) -> None:
        await self.pool.execute("SELECT pgmq.purge_queue($1)", QUEUE)

    async def send(self) -> None:
        await self.pool.execute("SELECT pgmq.send($1, $2::jsonb)", QUEUE, BODY)

    async def send_many(self, count: int) -> None:
        await self.pool.execute("SELECT pgmq.send_batch($1, $2::jsonb[])", QUEUE, [BODY] * count)

    async def work(self, handled: Callable[[], None]) -> None:
        await asyncio.gather(*(self._worker(handled) for _ in range(self.params.concurrency)))

    async def _worker(self, handled: Callable[[], None]) -> None:
        """Reads a batch, handles each message, deletes the batch; ends when the queue is empty."""
        async with self.pool.acquire() as connection:
            while rows := await connection.fetch(
                "SELECT msg_id, message FROM pgmq.read($1, $2, $3)", QUEUE, LEASE_SECONDS, self.params.prefetch
            ):
                for _ in rows:
                    handled()
                await connection.execute("SELECT pgmq.delete($1, $2::bigint[])", QUEUE, [row["msg_id"] for row in rows])

    async def left(self) -> int:
        count = await self.pool.fetchval(f"SELECT count(*) FROM pgmq.q_{QUEUE}")
        return int(count)


run_driver(Driver())
