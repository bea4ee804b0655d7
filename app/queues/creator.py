"""Creates queues on first use, in the transaction that stores their first jobs: a call that is refused leaves no queue behind.

    missing -> drafted (number chosen, under the lock of this process) -> stored (with the jobs) -> cached (after the commit)

If another process has taken the number or the name in the meantime, the transaction fails and the call is repeated.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from asyncpg import UniqueViolationError

from app.db.infrastructure import Infrastructure
from app.db.pool import Executor
from app.errors import DatabaseUnavailable, NotFound, Problem, QueueLimit
from app.queues import store
from app.queues.cache import Queue, QueueCache
from app.queues.store import MAX_QUEUE_ID, QueueRow

T = TypeVar("T")
Find = Callable[[str], Queue]
TRIES = 20  # each lost race means that another process created a queue


class QueueTaken(Exception):
    """Another process has used the number, or created the queue."""


class QueueCreator:
    def __init__(self, infra: Infrastructure, queues: QueueCache) -> None:
        self._infra = infra
        self._queues = queues
        self._drafting = asyncio.Lock()  # two calls of one process never draft the same number

    async def call(self, names: Iterable[str], act: Callable[[Find], Awaitable[T]]) -> T:
        """Calls `act` with a function that finds the queues of these names, drafts included, and raises for one that cannot be created.
        `act` stores the drafts that it uses (`store`). The lock is held only while there are drafts: calls that waited for it and find
        that their queues exist by now go on together."""
        names = list(dict.fromkeys(names))
        for _ in range(TRIES):
            async with self._locked():
                found = await self._existing(names)
                drafts = self._drafts(
                    [name for name in names if name not in found], self._infra.settings.max_queues - len(found)
                )
                if drafts:
                    try:
                        return await act(partial(self._find, found | drafts))
                    except QueueTaken:
                        continue
            return await act(partial(self._find, found))
        raise QueueLimit(
            "the queue could not be created: other processes create queues at the same time", retry_after=1
        )

    async def _existing(self, names: Iterable[str]) -> dict[str, Queue]:
        """All queues that exist. Reads the database only if the cache lacks one of these names."""
        found = {queue.name: queue for queue in self._queues.known()}
        if found.keys() >= set(names):
            return found
        await self._queues.refresh()
        return {queue.name: queue for queue in self._queues.known()}

    async def store(self, on: Executor, queues: Iterable[Queue]) -> None:
        """Inserts the drafts among the queues. Call it after every lock that the transaction waits for, because a queue's row is the last
        in the lock order. Refresh the cache after the commit."""
        drafts = sorted(
            {(queue.id, queue.name) for queue in queues if queue.is_draft}
        )  # rivals start with the same number and wait
        if not drafts:
            return
        try:
            stored = await store.add_queues(on, drafts, self._infra.settings.max_queues)
        except UniqueViolationError as error:
            raise QueueTaken from error
        if len(stored) < len(drafts):
            raise QueueTaken
        if any(
            stored.values()
        ):  # processes look up a new name when they need it, but have a deleted queue in their caches
            await self._infra.versions.bump(on, "policies")

    def _drafts(self, names: Iterable[str], limit: int) -> dict[str, Queue]:
        """Drafts for the first names, at most `limit`. A deleted queue keeps its old number and lanes."""
        if not self._infra.settings.create_queues:
            return {}
        deleted = {queue.name: queue.row._replace(deleted_at=None) for queue in self._queues.everything()}
        free = iter(range(max((row.id for row in deleted.values()), default=0) + 1, MAX_QUEUE_ID + 1))
        drafts: dict[str, Queue] = {}
        for name in names:
            number = deleted[name].id if name in deleted else next(free, None)
            if number is not None and len(drafts) < limit:
                drafts[name] = Queue(deleted.get(name) or QueueRow.new(number, name, self._infra.now()), is_draft=True)
        return drafts

    def _find(self, found: Mapping[str, Queue], name: str) -> Queue:
        if name not in found:
            raise self._refusal(name)
        return found[name]

    def _refusal(self, name: str) -> Problem:
        if not self._infra.settings.create_queues:
            return NotFound(f"no queue named {name}, and this broker does not create queues on enqueue")
        return QueueLimit(f"there are {len(self._queues.known())} queues already", retry_after=60)

    @asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._infra.settings.acquire_timeout_seconds):
                await self._drafting.acquire()
        except TimeoutError:
            raise DatabaseUnavailable("other new queues are still being created", "not_done") from None
        try:
            yield
        finally:
            self._drafting.release()
