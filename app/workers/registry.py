"""The workers that have been seen, and those that should drain or stop.

Kept in memory and synced with the database every second, so that no claim has to read or write it.
"""

import asyncio
from typing import Literal

from app.db.infrastructure import Infrastructure
from app.errors import NotFound
from app.events import EventBus, WorkerDirected
from app.http.pagination import EncodedPage, PageParams, encode_page
from app.log import log
from app.workers import store
from app.workers.listed_ids import ListedIds
from app.workers.schemas import Worker
from app.workers.store import WorkerRow

Directive = Literal["run", "drain", "stop"]


class WorkerRegistry:
    def __init__(self, *, infra: Infrastructure, events: EventBus) -> None:
        self._infra = infra
        self._events = events
        self._seen: set[str] = set()
        self._listed = ListedIds[str](infra.settings.max_workers_per_key)
        self._directives: dict[str, str] = {}
        self._write_lock = asyncio.Lock()
        self._read_lock = asyncio.Lock()  # keeps a slow read from overwriting a newer one

    def record_seen(self, worker_id: str | None, key_name: str) -> None:
        if worker_id is None or worker_id in self._seen:
            return
        if self._listed.try_add(worker_id, key_name):
            self._seen.add(worker_id)
        else:
            self._infra.metrics.workers_not_listed.inc()

    def directive(self, worker_id: str | None) -> str:
        return self._directives.get(worker_id or "", "run")

    async def sync(self) -> None:
        """Writes the workers that were seen, and reads the directives that other brokers have set.

        Publishes the workers that have got or lost a directive.
        """
        await self._write_seen()
        async with self._read_lock:
            before, self._directives = self._directives, await store.workers_with_directive(self._infra.db)
        for worker_id in before.keys() ^ self._directives.keys():
            self._events.publish(WorkerDirected(worker_id))

    async def set_directive(self, worker_id: str, directive: Directive, caller: str) -> Worker:
        await self._write_seen()
        if not await store.set_directive(self._infra.db, worker_id, directive):
            raise NotFound(f"no worker {worker_id} has been seen")
        log.info("worker directive set", worker_id=worker_id, directive=directive, caller=caller)
        await self.sync()
        return await self.get(worker_id)

    async def get(self, worker_id: str) -> Worker:
        row = await store.get_worker(self._infra.db, worker_id)
        if row is None:
            raise NotFound(f"no worker {worker_id} has been seen")
        return row.to_response()

    async def page(self, page: PageParams) -> EncodedPage[Worker]:
        await self._write_seen()
        rows = await store.list_workers(self._infra.read_connections, page.after("id"), page.limit + 1)
        return await encode_page(
            rows,
            WorkerRow.to_response,
            lambda worker: {"id": worker.worker_id},
            limit=page.limit,
            max_bytes=self._infra.settings.max_list_bytes,
        )

    async def _write_seen(self) -> None:
        """Writes the workers that were seen before the call.

        Waits for a write that is running: it may be writing these workers, and the caller is about
        to read them.
        """
        async with self._write_lock:
            seen, self._seen = self._seen, set()
            if not seen:
                return
            try:
                await store.record_workers(self._infra.db, sorted(seen), self._infra.now(), self._listed.max_rows)
            except Exception:
                self._seen |= seen
                raise
