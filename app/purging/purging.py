"""Removes waiting jobs in batches: each of its own, so that a million of them block nobody."""

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from uuid import UUID

from app.db.infrastructure import Infrastructure
from app.db.lanes import by_lane, first_id_at, lane_of
from app.http.schema_types import value_or
from app.jobs.signals import Signals
from app.log import log
from app.purging import store
from app.queues.cache import QueueCache
from app.queues.schemas import PurgeQueue, QueuePurged, WaitingState

BATCH = 1000
SLACK = timedelta(seconds=1)  # ids are minted by several processes, whose clocks differ by some milliseconds

_FIRST = UUID(int=0)
_STORED = {
    WaitingState.SCHEDULED: ["scheduled"],
    WaitingState.BLOCKED: ["blocked"],
    WaitingState.READY: ["ready", "parked"],
}


class QueuePurger:
    """After each batch others may have their turn (`look_at` the lane), and those that waited for a job that is gone have to hear of it."""

    def __init__(
        self, infra: Infrastructure, queues: QueueCache, signals: Signals, look_at: Callable[[int], None]
    ) -> None:
        self._infra = infra
        self._queues = queues
        self._signals = signals
        self._look_at = look_at

    async def purge(self, name: str, request: PurgeQueue, caller: str = "") -> QueuePurged:
        lanes = (await self._queues.get(name)).all_lanes
        states = [stored for state in set(value_or(request.states, [*WaitingState])) for stored in _STORED[state]]
        if value_or(request.dry_run, True):
            return QueuePurged(
                matched=await store.count_purgeable(self._infra.reads, lanes, states), purged=0, dry_run=True
            )
        matched = purged = 0
        async for ids in self._batches(lanes, states):
            matched += len(ids)
            purged += await self._remove(ids, states)
        log.info("queue purged", queue=name, count=purged, matched=matched, caller=caller)
        return QueuePurged(matched=matched, purged=purged)

    async def _batches(self, lanes: range, states: Sequence[str]) -> AsyncIterator[list[UUID]]:
        after, before = (lanes.start, _FIRST), first_id_at(self._infra.now() + SLACK)
        while ids := await store.purgeable_jobs(self._infra.db, after, lanes.stop, before, states, BATCH):
            yield ids
            after = (lane_of(ids[-1]), ids[-1])

    async def _remove(self, ids: Sequence[UUID], states: Sequence[str]) -> int:
        removed = 0
        for lane, some in by_lane(ids, lambda job_id: job_id).items():
            removed += await store.purge_waiting(self._infra.db, lane, some, states)
            self._look_at(lane)
            self._signals.ended()
        return removed
