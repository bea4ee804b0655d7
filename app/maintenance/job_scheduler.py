"""Makes scheduled jobs ready or pending when their `run_at` has passed.

    scheduled -> ready     the job can be claimed now
    scheduled -> pending   the job waits for an admission, see app/concurrency

Every broker runs a scheduler; no leader is needed. The scheduler also sets a timer for the next due
job, so that a job with a short delay does not wait for the next scan.
"""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from app.db.infrastructure import Infrastructure
from app.db.lanes import group_by_lane
from app.events import EventBus, JobsMoved
from app.jobs import store as jobs
from app.periodic_service import PeriodicService
from app.queues.cache import QueueCache

BATCH_SIZE = 500  # jobs per statement


class JobScheduler(PeriodicService):
    def __init__(self, *, infra: Infrastructure, queues: QueueCache, events: EventBus) -> None:
        super().__init__()
        self._infra = infra
        self._queues = queues
        self._events = events
        events.subscribe_moved(["scheduled"], self._on_scheduled)

    def _on_scheduled(self, event: JobsMoved) -> None:
        self.set_alarm(min(job.run_at for job in event.jobs if job.run_at is not None))

    async def run_once(self) -> None:
        now = self._infra.now()
        while due := await jobs.due_jobs(self._infra.db, now, BATCH_SIZE):
            lanes = group_by_lane(due, lambda job_id: job_id)
            moved = sum([await self._make_ready(lane, ids, now) for lane, ids in lanes.items()])
            if not moved:
                break  # other sessions have locked or moved the jobs
        next_due = await jobs.next_due(self._infra.db)
        # If the next job is overdue, another session has locked it. A timer for that job would fire
        # at once, again and again, so the job waits for the next scan.
        if next_due is not None and next_due > now:
            self.set_alarm(next_due)

    async def _make_ready(self, lane: int, ids: Sequence[UUID], now: datetime) -> int:
        """Makes due jobs of one lane ready or pending. Returns the number of these jobs."""
        await self._queues.load_lanes([lane])
        moved = await jobs.make_due_ready(self._infra.db, lane, ids, now, self._queues.held_groups(lane))
        self._infra.metrics.promoted.inc(len(moved))
        self._events.publish_moved(lane, moved)
        return len(moved)

    def set_alarm(self, instant: datetime) -> None:
        """Wakes the scheduler at `instant`.

        Does nothing if `instant` is further away than the scan interval, because a later scan finds
        the job.
        """
        seconds = (instant - self._infra.now()).total_seconds()
        if seconds < self._infra.settings.sweep_seconds:
            self.wake_after(max(seconds, 0) + 0.001)
