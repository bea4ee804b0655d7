"""procrastinate: defer_async and batch_defer_async, and its worker on the psycopg connector."""

from collections.abc import Callable

import procrastinate  # type: ignore[import-not-found]
from load import PAYLOAD, QUEUE, Params, run_driver  # type: ignore[import-not-found] # beside this file, which is run as a program

LEFT = "SELECT count(*) AS left FROM procrastinate_jobs WHERE status IN ('todo', 'doing', 'failed')"
EMPTY = "TRUNCATE procrastinate_jobs, procrastinate_events, procrastinate_workers CASCADE"


class Driver:
    async def open(self, params: Params) -> None:
        self.params = params
        self.handled: Callable[[], None] = lambda: None
        self.connector = procrastinate.PsycopgConnector(
            conninfo=params.address, min_size=params.pool, max_size=params.pool
        )
        self.app = procrastinate.App(connector=self.connector)
        self.task = self.app.task(queue=QUEUE, name=QUEUE)(self._handle)
        await self.app.open_async()

    async def _handle(self, text: str) -> None:
        self.handled()

    async def prepare(self) -> None:
        await self.app.schema_manager.apply_schema_async()

    async def empty(self) -> None:
        await self.connector.execute_query_async(EMPTY)

    async def send(self) -> None:
        await self.task.defer_async(**PAYLOAD)

    async def send_many(self, count: int) -> None:
        await self.task.batch_defer_async(*[PAYLOAD] * count)

    async def work(self, handled: Callable[[], None]) -> None:
        self.handled = handled
        await self.app.run_worker_async(concurrency=self.params.concurrency, install_signal_handlers=False)

    async def left(self) -> int:
        return int((await self.connector.execute_query_one_async(LEFT))["left"])


run_driver(Driver())
