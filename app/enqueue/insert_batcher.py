"""Inserts the jobs of concurrent callers in one statement for each lane, in autocommit."""

from collections.abc import Sequence
from itertools import chain

from app.db.batcher import Batcher
from app.db.infrastructure import Infrastructure
from app.enqueue.drafts import id_of_row
from app.events import EventBus
from app.jobs import store
from app.jobs.rows import NewJob
from app.matching.sync_match import SyncMatch, SyncMatcher

# A caller with more jobs gets its own statement: sharing would cost more time than it saves.
MAX_SHARED_JOBS = 100


class InsertBatcher(Batcher[int, Sequence[NewJob], None]):
    """The jobs of a call have one lane and are in the order of their ids. None of them needs a
    transaction."""

    def __init__(self, *, infra: Infrastructure, matcher: SyncMatcher, events: EventBus) -> None:
        super().__init__("enqueue", infra.settings.acquire_timeout_seconds, max_weight=MAX_SHARED_JOBS)
        self._infra = infra
        self._matcher = matcher
        self._events = events

    def weight(self, item: Sequence[NewJob]) -> int:
        return len(item)

    async def run_batch(self, lane: int, calls: Sequence[Sequence[NewJob]]) -> Sequence[None]:
        await self._insert(lane, sorted(chain.from_iterable(calls), key=id_of_row) if len(calls) > 1 else calls[0])
        return [None] * len(calls)

    async def _insert(self, lane: int, rows: Sequence[NewJob]) -> None:
        """Inserts rows of one lane in one statement, and offers them to waiting pollers."""
        match: SyncMatch | None = None
        try:
            async with self._infra.db.autocommit() as connection:
                match = self._matcher.offer(lane, rows)
                await store.enqueue(connection, lane, match.rows)
        except BaseException as error:
            if match is not None:
                match.aborted(error)
            raise
        match.committed()
        self.publish(lane, match.rows)

    def publish(self, lane: int, rows: Sequence[NewJob]) -> None:
        """Counts and publishes jobs of one lane after their commit, in the order of their ids."""
        self._infra.metrics.enqueued.inc(len(rows))
        self._events.publish_moved(lane, rows)
