"""Claims jobs from queues with `max_running` or `rate`, as many as these limits allow.

Each claim locks the lane, reads how many jobs the limits allow (its allowance, see
queue_limits.py), and holds the lock until it commits.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

from app.concurrency.queue_limits import QueueLimits
from app.db.infrastructure import Infrastructure
from app.db.pool import Transaction, retry_after_deadlock
from app.events import EventBus, QueueReady
from app.jobs.rows import ClaimedRow
from app.leases.low_water_marks import LowWaterMarks
from app.leases.rows import ClaimParams, ClaimResult, LanePolicy
from app.locks import store as locks
from app.queues.cache import Queue, QueueCache


class LimitedClaims:
    def __init__(
        self,
        *,
        infra: Infrastructure,
        queues: QueueCache,
        events: EventBus,
        limits: QueueLimits,
        low_water_marks: LowWaterMarks,
    ) -> None:
        self._infra = infra
        self._queues = queues
        self._events = events
        self._limits = limits
        self._low_water_marks = low_water_marks
        self._wake_timers: dict[int, asyncio.TimerHandle] = {}

    async def lock_lanes(self, transaction: Transaction, queues: Sequence[Queue], *, wait_for_lock: bool) -> set[int]:
        """Locks the lanes of the limited queues. Returns the lanes whose lock was not free."""
        lanes = sorted(lane for queue in queues if queue.is_limited for lane in queue.all_lanes)
        return {lane for lane in lanes if not await locks.lock_lane(transaction, lane, wait=wait_for_lock)}

    async def claim(
        self,
        transaction: Transaction | None,
        queue: Queue,
        lane: int,
        limit: int,
        params: ClaimParams,
        *,
        wait_for_lock: bool,
    ) -> ClaimResult:
        """Claims up to `limit` jobs, as far as the limits of the queue allow.

        Runs in `transaction`. If that is None, starts a transaction and commits it.
        """
        if transaction is None:
            return await self._claim_and_commit(queue, lane, limit, params, wait_for_lock=wait_for_lock)
        allowance = await self._limits.acquire(transaction, queue, lane, limit, wait_for_lock=wait_for_lock)
        if allowance is None:
            return ClaimResult([], skipped=True)
        rows: list[ClaimedRow] = []
        if allowance.limit > 0 and not self._queues.is_paused(lane):
            policy = LanePolicy(self._queues.held_groups(lane), fair=queue.fair, uses_slot=queue.uses_slot)
            rows = await self._low_water_marks.claim_with_marks(
                transaction, lane, allowance.limit, params, policy, allowance.now
            )
            await self._limits.record(transaction, queue, lane, len(rows), allowance.now)
        if allowance.retry_at is not None and len(rows) == allowance.limit < limit:
            # At `retry_at` the rate limit allows more jobs: a poller that waits then has to claim.
            self._wake_at(queue.id, allowance.retry_at)
        return ClaimResult(rows, allowance.retry_at if allowance.limit == 0 else None)

    @retry_after_deadlock
    async def _claim_and_commit(
        self, queue: Queue, lane: int, limit: int, params: ClaimParams, *, wait_for_lock: bool
    ) -> ClaimResult:
        async with self._infra.db.transaction() as transaction:
            return await self.claim(transaction, queue, lane, limit, params, wait_for_lock=wait_for_lock)

    def _wake_at(self, queue_id: int, instant: datetime) -> None:
        """Wakes a poller of the queue at `instant`.

        Each process has one timer per queue, however many pollers have claimed. An earlier
        `instant` replaces a later one.
        """
        loop = asyncio.get_running_loop()
        when = loop.time() + max(0.0, (instant - self._infra.now()) / timedelta(seconds=1))
        current = self._wake_timers.get(queue_id)
        if current is not None and current.when() <= when:
            return
        if current is not None:
            current.cancel()
        self._wake_timers[queue_id] = loop.call_at(when, self._wake, queue_id)

    def _wake(self, queue_id: int) -> None:
        self._wake_timers.pop(queue_id, None)
        self._events.publish(QueueReady(queue_id))
