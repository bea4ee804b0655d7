"""Moves jobs that no worker has started before their `expires_at` to the dead letters.

    scheduled | blocked | ready | pending -> dead   (reason `expired`)

Every broker runs the enforcer; no leader is needed. If a worker starts a job after the enforcer has
found it, the statement that moves jobs skips the job.
"""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from app.db.infrastructure import Infrastructure
from app.db.lanes import group_by_lane
from app.db.pool import for_each
from app.events import EventBus
from app.jobs import store as jobs
from app.log import log
from app.periodic_service import PeriodicService
from app.queues.cache import QueueCache

BATCH_SIZE = 500  # jobs per statement


class StartDeadlineEnforcer(PeriodicService):
    def __init__(self, *, infra: Infrastructure, queues: QueueCache, events: EventBus) -> None:
        super().__init__()
        self._infra = infra
        self._queues = queues
        self._events = events

    async def run_once(self) -> None:
        now = self._infra.now()
        while overdue := await jobs.past_start_deadline(self._infra.db, now, BATCH_SIZE):
            lanes = group_by_lane(overdue, lambda job_id: job_id)
            moved = sum(await for_each(lanes.items(), lambda item: self._move_to_dead_letters(*item, now)))
            if not moved:
                break  # workers have just started these jobs

    async def _move_to_dead_letters(self, lane: int, ids: Sequence[UUID], now: datetime) -> int:
        rows = await jobs.move_unstarted_to_dead_letters(self._infra.db, lane, ids, now)
        self._events.publish_moved(lane, rows)
        if rows:
            log.info("jobs missed their start deadline", queue=await self._queues.find_name(lane), count=len(rows))
        return len(rows)
