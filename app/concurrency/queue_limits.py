"""max_running and rate: asked by a claim, with the gate of the lane held until its commit."""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from app.concurrency import store
from app.db.infrastructure import Infrastructure
from app.db.pool import Executor
from app.locks import store as keys
from app.queues.cache import Queue

SLICES = 1000  # of a rate's span: as many rows at most are summed up by a claim
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


class Allowance(NamedTuple):
    """How many may be handed out at `now`. If there is a rate: when it has more to give after these."""

    most: int
    now: datetime
    retry_at: datetime | None = None


class QueueLimits:
    def __init__(self, infra: Infrastructure) -> None:
        self._infra = infra

    async def acquire(self, on: Executor, queue: Queue, lane: int, most: int, *, wait: bool) -> Allowance | None:
        """Runs in the claim's transaction. Without `wait`, returns None if another transaction holds the lane lock."""
        if not await keys.lock_lane(on, lane, wait=wait):
            return None
        if queue.max_running is not None:
            most = min(most, queue.max_running - await store.running_slots(on, lane))
        if queue.rate is None or most <= 0:
            return Allowance(max(0, most), self._infra.now())
        return await self.remaining_rate(on, queue, lane, most)

    async def remaining_rate(self, on: Executor, queue: Queue, lane: int, most: int) -> Allowance:
        """Whoever looks through a window as long as the span, wherever it begins, sees no more than the limit. Time does not go back
        behind what was let through already: processes know the database's clock to some milliseconds only. A slice counts until its last
        instant has left the window."""
        assert queue.rate is not None
        now, span = self._infra.now(), timedelta(seconds=queue.rate.per_seconds) * (1 + 1 / SLICES)
        passed = await store.rate_limit_usage(on, lane, now - span)
        if passed.last_at is not None and passed.last_at > now:
            now = passed.last_at
        left = max(0, queue.rate.limit - passed.n)
        return Allowance(min(most, left), now, (passed.first_at or now) + span + timedelta(milliseconds=1))

    async def note(self, on: Executor, queue: Queue, lane: int, n: int, now: datetime) -> None:
        """So many were handed out."""
        if queue.rate is not None and n:
            span = timedelta(seconds=queue.rate.per_seconds)
            await store.record_usage(on, lane, _begin_of_slice(now, span / SLICES), n, now - 2 * span)


def _begin_of_slice(now: datetime, length: timedelta) -> datetime:
    return now - (now - _EPOCH) % length
