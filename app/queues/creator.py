"""Creates queues on first use, in the transaction that inserts their first jobs.

A rejected enqueue therefore creates no queue.

    missing -> drafted   `run_with_queues` chooses an id, under a lock of this process
    drafted -> stored    `insert_drafts` inserts the queue, in the transaction of its first jobs
    drafted -> missing   another process used the id or the name first: the transaction fails, and
                         the call is retried
    stored  -> cached    the service reloads the queue after the commit
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from typing import TypeVar

from asyncpg import UniqueViolationError

from app.db.infrastructure import Infrastructure
from app.db.pool import Executor
from app.errors import DatabaseUnavailable, NotFound, Problem, QueueLimit
from app.queues import store
from app.queues.cache import MissingQueue, Queue, QueueCache
from app.queues.store import NewQueue, QueueRow

T = TypeVar("T")
FindQueue = Callable[[str], Queue]
MAX_TRIES = 20  # a try fails only if another process creates a queue at the same time


class QueueConflict(Exception):
    """Another process has used the id of a drafted queue, or has created the queue.

    `QueueCreator` then tries again.
    """


def no_id_left() -> QueueLimit:
    detail = "deleted queues keep theirs, so reuse the name of a deleted queue"
    return QueueLimit(f"no queue id is left: {detail}", retry_after=60)


class QueueCreator:
    def __init__(self, *, infra: Infrastructure, queues: QueueCache) -> None:
        self._infra = infra
        self._queues = queues
        self._drafting = asyncio.Lock()  # so that two calls never draft the same id

    async def run_with_queues(self, names: Iterable[str], action: Callable[[FindQueue], Awaitable[T]]) -> T:
        """Calls `action` with a function that finds a queue by name.

        For a missing queue the function returns a draft, or raises NotFound or QueueLimit if the
        queue cannot be created.

        `action` must insert the drafts that it uses, with `insert_drafts`. The first call of
        `action` gets a function that knows only cached queues. If a queue is not cached, that call
        raises MissingQueue before it commits anything, and `action` is called again, with drafts.
        """
        try:
            return await action(self._queues.require)
        except MissingQueue:
            return await self._run_with_drafts(list(dict.fromkeys(names)), action)

    async def _run_with_drafts(self, names: Sequence[str], action: Callable[[FindQueue], Awaitable[T]]) -> T:
        """Drafts the missing queues and calls `action`, under the lock for drafting.

        If there is nothing to draft once the lock is acquired, calls `action` after releasing it:
        such calls run concurrently.
        """
        for _ in range(MAX_TRIES):
            async with self._draft_lock():
                queues = await self._existing(names)
                drafts, ids_are_used_up = await self._draft_queues([name for name in names if name not in queues])
                find = partial(self._find, queues | drafts, ids_are_used_up)
                if drafts:
                    try:
                        return await action(find)
                    except QueueConflict:
                        continue
            return await action(find)
        raise QueueLimit("the queue could not be created: other processes are creating queues, too", retry_after=1)

    async def _existing(self, names: Sequence[str]) -> dict[str, Queue]:
        """Returns the queues of these names that exist and are not deleted.

        Reads the database only if the cache lacks one of them.
        """
        queues = self._cached(names)
        if len(queues) < len(names):
            await self._queues.reload_names([name for name in names if name not in queues])
        return self._cached(names)

    def _cached(self, names: Sequence[str]) -> dict[str, Queue]:
        return {
            name: queue for name, queue in self._queues.cached_including_deleted(names).items() if not queue.deleted
        }

    async def insert_drafts(self, db: Executor, queues: Iterable[Queue]) -> None:
        """Inserts the drafts among these queues. Raises QueueConflict if one cannot be inserted.

        Call this method after the transaction has acquired all other locks: the rows of queues come
        after them (docs/architecture/concurrency.md#locks). Reload the queues after the commit.
        """
        # Sorted by id: if two processes insert the same ids, one process waits for the other,
        # without a deadlock.
        drafts = sorted({NewQueue(queue.id, queue.name) for queue in queues if queue.is_draft})
        if not drafts:
            return
        try:
            stored = await store.add_queues(db, drafts, self._infra.settings.max_queues)
        except UniqueViolationError as error:
            raise QueueConflict from error
        if len(stored) < len(drafts):
            raise QueueConflict
        if any(stored.values()):
            # Other processes still cache the undeleted queue as deleted, so they must reload it. A
            # new queue needs no reload: no cache contains it, so every process looks it up.
            await self._infra.config_versions.bump(db, "policies")

    async def _draft_queues(self, names: Sequence[str]) -> tuple[dict[str, Queue], bool]:
        """Drafts queues for these names, in order, as many as `max_queues` allows.

        The draft of a deleted queue keeps its id and lanes. A new queue gets the next id of the
        range of this installation, after the highest id in the database. Also returns whether all
        ids of the range are used.
        """
        if not names or not self._infra.settings.create_queues:
            return {}, False
        totals = await store.queue_totals(self._infra.db)
        limit = max(0, self._infra.settings.max_queues - totals.not_deleted)
        deleted = {
            name: queue.row._replace(deleted_at=None)
            for name, queue in self._queues.cached_including_deleted(names).items()
        }
        free_ids = iter(range(totals.next_id, totals.last_id + 1))
        rows = (deleted.get(name) or self._new_row(next(free_ids, None), name) for name in names)
        drafts = {row.name: Queue(row, is_draft=True) for row in islice(filter(None, rows), limit)}
        return drafts, next(free_ids, None) is None

    def _new_row(self, queue_id: int | None, name: str) -> QueueRow | None:
        """Builds the row of a new queue. Returns None if no id is left (`queue_id` is None)."""
        return None if queue_id is None else QueueRow.new(queue_id, name, self._infra.now())

    def _find(self, queues: Mapping[str, Queue], ids_are_used_up: bool, name: str) -> Queue:
        if name not in queues:
            raise self._creation_problem(name, ids_are_used_up)
        return queues[name]

    def _creation_problem(self, name: str, ids_are_used_up: bool) -> Problem:
        if not self._infra.settings.create_queues:
            return NotFound(f"no queue named {name}; this broker does not create queues on enqueue")
        if ids_are_used_up:
            return no_id_left()
        return QueueLimit(f"there are {self._infra.settings.max_queues} queues already", retry_after=60)

    @asynccontextmanager
    async def _draft_lock(self) -> AsyncIterator[None]:
        """Holds the lock for drafting. Raises DatabaseUnavailable if the lock is not free within
        `acquire_timeout_seconds`."""
        try:
            async with asyncio.timeout(self._infra.settings.acquire_timeout_seconds):
                await self._drafting.acquire()
        except TimeoutError:
            raise DatabaseUnavailable("other new queues are still being created", "not_done") from None
        try:
            yield
        finally:
            self._drafting.release()
