"""Records which workers were seen lately, and which queues and job types were polled.

The records and the directives of workers are in memory. They are synced with the database every
second, so that no claim reads or writes the database for them.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Literal, TypeVar

from app.db.infrastructure import Infrastructure
from app.errors import NotFound
from app.events import EventBus, WorkerDirected
from app.http.pagination import EncodedPage, PageParams, encode_page
from app.log import log
from app.workers import store
from app.workers.schemas import Worker
from app.workers.store import PolledType, WorkerRow

T = TypeVar("T", str, PolledType)
Directive = Literal["run", "drain", "stop"]

ANY_TYPE = ""
MAX_POLLS = 10_000  # pairs of a queue and a job type in one write
FORGET_SECONDS = 24 * 60 * 60
# The maximum number of rows of a table is this factor times the limit of one caller. Every broker
# counts the ids of a caller by itself, and from zero after a restart. The maximum of the table
# holds for all brokers together.
LIMITS_PER_TABLE = 10


class RecentIds(Generic[T]):
    """Lists the ids that callers used lately, a limited number for each caller.

    The ids are worker ids, or polled queues and job types. `write` stores the listed ids in their
    table.

    Without the limit, an API key with the scope `work` could fill the tables and the memory. A
    common mistake is a worker that invents a new id for every claim. Its requests are served like
    any others, but beyond the limit its ids are not listed. An id that was not seen for a day no
    longer counts, and the cleaner deletes its row.
    """

    def __init__(
        self,
        limit: int,
        write_ids: Callable[[Sequence[T], int], Awaitable[None]],
        *,
        max_unwritten: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`write_ids` gets sorted ids, and the maximum number of rows of their table."""
        self._limit = limit
        self._write_ids: Callable[[Sequence[T], int], Awaitable[None]] = write_ids
        self._max_unwritten = max_unwritten
        self._clock = clock
        self._by_caller: dict[str, dict[T, float]] = {}  # id -> time when it was last seen, oldest first
        self._unwritten: set[T] = set()
        self._write_lock = asyncio.Lock()

    def record(self, recent_id: T, caller: str) -> bool:
        """Lists the id, so that the next `write` stores it.

        Returns False if the caller has reached its limit.
        """
        if recent_id in self._unwritten or len(self._unwritten) >= self._max_unwritten:
            return True
        ids, now = self._by_caller.setdefault(caller, {}), self._clock()
        is_listed = ids.pop(recent_id, None) is not None
        while ids and now - next(iter(ids.values())) > FORGET_SECONDS:
            del ids[next(iter(ids))]
        if not is_listed and len(ids) >= self._limit:
            return False
        ids[recent_id] = now
        self._unwritten.add(recent_id)
        return True

    async def write(self) -> None:
        """Writes the ids that were recorded before the call.

        Waits for a running write first: it may have these ids, and the caller reads them next.
        """
        async with self._write_lock:
            ids, self._unwritten = self._unwritten, set()
            if not ids:
                return
            try:
                await self._write_ids(sorted(ids), self._limit * LIMITS_PER_TABLE)
            except Exception:
                self._unwritten |= ids
                raise


class WorkerRegistry:
    """The workers that were seen lately, and their directives."""

    def __init__(self, *, infra: Infrastructure, events: EventBus) -> None:
        self._infra = infra
        self._events = events
        self._seen = RecentIds[str](infra.settings.max_workers_per_key, self._write_workers)
        self._directives: dict[str, str] = {}
        self._read_lock = asyncio.Lock()  # keeps a slow read from overwriting a newer result

    def record_seen(self, worker_id: str | None, caller: str) -> None:
        if worker_id is not None and not self._seen.record(worker_id, caller):
            self._infra.metrics.workers_not_listed.inc()

    def directive(self, worker_id: str | None) -> str:
        return self._directives.get(worker_id or "", "run")

    async def sync(self) -> None:
        """Writes the workers that were seen, and reads all directives.

        Publishes an event for each worker that has got or lost a directive.
        """
        await self._seen.write()
        async with self._read_lock:
            before, self._directives = self._directives, await store.workers_with_directive(self._infra.db)
        for worker_id in before.keys() ^ self._directives.keys():
            self._events.publish(WorkerDirected(worker_id))

    async def set_directive(self, worker_id: str, directive: Directive, caller: str) -> Worker:
        await self._seen.write()
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
        await self._seen.write()
        rows = await store.list_workers(self._infra.read_connections, page.after("id"), page.limit + 1)
        return await encode_page(
            rows,
            WorkerRow.to_response,
            lambda worker: {"id": worker.worker_id},
            limit=page.limit,
            max_bytes=self._infra.settings.max_list_bytes,
        )

    async def _write_workers(self, ids: Sequence[str], max_rows: int) -> None:
        await store.record_workers(self._infra.db, ids, self._infra.now(), max_rows)


class PollHistory:
    """Records which queues and job types were polled lately.

    `explain` uses the history to report that no worker polls for a job. The history of each caller
    is limited, because a worker may poll for invented names.
    """

    def __init__(self, *, infra: Infrastructure) -> None:
        self._infra = infra
        self._polls = RecentIds[PolledType](
            infra.settings.max_polled_types_per_key, self._write_polls, max_unwritten=MAX_POLLS
        )

    def record(self, queues: Sequence[str], job_types: Sequence[str] | None, caller: str) -> None:
        """Records that a poll accepts jobs of these types, or of all types, from these queues.

        Skips entries beyond MAX_POLLS or beyond the limit of the caller.
        """
        for queue in queues:
            for job_type in job_types or (ANY_TYPE,):
                if not self._polls.record(PolledType(queue, job_type), caller):
                    self._infra.metrics.polls_not_recorded.inc()

    async def write(self) -> None:
        """Writes the polls that were recorded before the call."""
        await self._polls.write()

    async def _write_polls(self, polls: Sequence[PolledType], max_rows: int) -> None:
        await store.record_polls(self._infra.db, polls, self._infra.now(), max_rows)
