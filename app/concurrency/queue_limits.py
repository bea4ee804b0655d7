"""Enforces the limits `max_running` and `rate` of a queue.

A claim locks the lane, reads how many jobs the limits allow (its allowance), and holds the lock
until it commits.
"""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from app.concurrency import store
from app.db.infrastructure import Infrastructure
from app.db.pool import Executor
from app.locks import store as locks
from app.queues.cache import Queue

# The window of a rate limit is divided into 1000 slices. The jobs of a slice are counted in one row
# of rate_limit_usage, so a claim sums at most about 1000 rows.
SLICES_PER_WINDOW = 1000
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


class Allowance(NamedTuple):
    """How many jobs a claim may deliver at `now` (`limit`).

    `retry_at` is the time at which the rate limit allows more jobs. `retry_at` is None if the queue
    has no rate limit, or if `max_running` allows no job.
    """

    limit: int
    now: datetime
    retry_at: datetime | None = None


class QueueLimits:
    def __init__(self, *, infra: Infrastructure) -> None:
        self._infra = infra

    async def acquire(
        self, db: Executor, queue: Queue, lane: int, limit: int, *, wait_for_lock: bool
    ) -> Allowance | None:
        """Locks the lane and returns how many jobs the claim may deliver.

        Runs in the transaction of the claim. Without `wait_for_lock`, returns None if another
        transaction holds the lane lock.
        """
        if not await locks.lock_lane(db, lane, wait=wait_for_lock):
            return None
        if queue.max_running is not None:
            limit = min(limit, queue.max_running - await store.count_slots(db, lane))
        if queue.rate is None or limit <= 0:
            return Allowance(max(0, limit), self._infra.now())
        return await self.rate_allowance(db, queue, lane, limit)

    async def rate_allowance(self, db: Executor, queue: Queue, lane: int, limit: int) -> Allowance:
        """Returns how many jobs the rate limit, a sliding window, still allows.

        No window of `per_seconds`, wherever it begins, contains more than `rate.limit` jobs.

        - If `now` is before the last recorded usage, it is set to the time of that usage. Another
          broker's clock may be ahead, because each broker estimates the database's clock, with an
          error of a few milliseconds.
        - A slice counts until its last instant has left the window.
        - `retry_at` is one ms after the first slice leaves the window, because a slice exactly at
          the start of the window still counts (`at >= :since`).
        """
        assert queue.rate is not None
        now = self._infra.now()
        window_and_slice = timedelta(seconds=queue.rate.per_seconds) * (1 + 1 / SLICES_PER_WINDOW)
        usage = await store.rate_limit_usage(db, lane, now - window_and_slice)
        if usage.last_at is not None and usage.last_at > now:
            now = usage.last_at
        remaining = max(0, queue.rate.limit - usage.used)
        retry_at = (usage.first_at or now) + window_and_slice + timedelta(milliseconds=1)
        return Allowance(min(limit, remaining), now, retry_at)

    async def record(self, db: Executor, queue: Queue, lane: int, count: int, now: datetime) -> None:
        """Records that `count` jobs were claimed at `now`."""
        if queue.rate is not None and count:
            window = timedelta(seconds=queue.rate.per_seconds)
            slice_start = _start_of_slice(now, window / SLICES_PER_WINDOW)
            await store.record_usage(db, lane, slice_start, count, now - 2 * window)


def _start_of_slice(now: datetime, length: timedelta) -> datetime:
    return now - (now - _EPOCH) % length
