"""Removes the waiting jobs of a queue in batches.

Each batch is a transaction of its own, so that purging a million jobs does not block other
requests.
"""

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from uuid import UUID

from app.db.infrastructure import Infrastructure
from app.db.lanes import first_id_at, group_by_lane, lane_of
from app.events import EventBus, JobsPurged
from app.http.schema_types import value_or
from app.jobs import store
from app.log import log
from app.queues.cache import QueueCache
from app.queues.schemas import PurgeQueue, QueuePurged, WaitingState

BATCH_SIZE = 1000
# A purge includes ids whose time is up to a second in the future, because several processes
# generate ids, and their clocks differ by a few milliseconds.
CLOCK_SKEW = timedelta(seconds=1)

_SMALLEST_ID = UUID(int=0)
_STORED_STATES = {
    WaitingState.SCHEDULED: ["scheduled"],
    WaitingState.BLOCKED: ["blocked"],
    WaitingState.READY: ["ready", "pending"],
}


class QueuePurger:
    """Purges a queue, and publishes JobsPurged after each batch.

    On this event the group scheduler admits other jobs in place of the removed jobs. The dependency
    resolver cancels or unblocks the children of removed jobs, which would otherwise wait forever.
    """

    def __init__(self, *, infra: Infrastructure, queues: QueueCache, events: EventBus) -> None:
        self._infra = infra
        self._queues = queues
        self._events = events

    async def purge(self, name: str, request: PurgeQueue, caller: str) -> QueuePurged:
        lanes = (await self._queues.get(name)).all_lanes
        states = [
            stored for state in set(value_or(request.states, [*WaitingState])) for stored in _STORED_STATES[state]
        ]
        if value_or(request.dry_run, True):
            return QueuePurged(
                matched=await store.count_purgeable(self._infra.read_connections, lanes, states), purged=0, dry_run=True
            )
        matched = purged = 0
        async for ids in self._batches(lanes, states):
            matched += len(ids)
            purged += await self._remove(ids, states)
        log.info("queue purged", queue=name, count=purged, matched=matched, caller=caller)
        return QueuePurged(matched=matched, purged=purged)

    async def _batches(self, lanes: range, states: Sequence[str]) -> AsyncIterator[list[UUID]]:
        after, before = (lanes.start, _SMALLEST_ID), first_id_at(self._infra.now() + CLOCK_SKEW)
        while ids := await store.purgeable_jobs(self._infra.db, after, lanes.stop, before, states, BATCH_SIZE):
            yield ids
            after = (lane_of(ids[-1]), ids[-1])

    async def _remove(self, ids: Sequence[UUID], states: Sequence[str]) -> int:
        removed = 0
        for lane, lane_ids in group_by_lane(ids, lambda job_id: job_id).items():
            removed += await store.purge_waiting(self._infra.db, lane, lane_ids, states)
            self._events.publish(JobsPurged(lane))
        return removed
