"""Claims ready jobs, queue by queue in order of preference, within the limits of each queue."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence, Set
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from app.concurrency.queue_limits import QueueLimits
from app.db.infrastructure import Infrastructure
from app.db.pool import Executor, Transaction, retry_after_deadlock
from app.errors import DatabaseUnavailable
from app.events import EventBus, QueueReady
from app.jobs.rows import ClaimedRow
from app.leases.claim_batcher import ClaimBatcher, ClaimCall
from app.leases.duration_histogram import DurationHistogram
from app.leases.low_water_marks import LowWaterMarks
from app.leases.rows import ClaimParams, LanePolicy
from app.locks import store as locks
from app.queues.cache import Queue, QueueCache

QUOTA_RETRY_DELAY = timedelta(seconds=1)


class ClaimResult(NamedTuple):
    """The result of a claim.

    retry_at   when a rate limit or the caller's quota may allow a job again; None if a job may come
               at any moment
    skipped    whether a lane was skipped because its lock was not free
    replayed   whether this is a repeated claim; then `rows` has its leases that have not ended,
               possibly none
    """

    rows: list[ClaimedRow]
    retry_at: datetime | None = None
    skipped: bool = False
    replayed: bool = False


async def claim_unlocked_lanes_first(
    queues: Sequence[Queue], claim: Callable[..., Awaitable[ClaimResult]]
) -> ClaimResult:
    """Calls `claim(wait_for_lock=...)` once or twice.

    The first call skips lanes whose lock is not free, so that one limited queue does not hold up
    the others. The second call waits for the locks. It runs only if the first claimed nothing and
    skipped a lane. If there is only one lane, the first call waits at once.
    """
    only_one_lane = sum(queue.lanes for queue in queues) <= 1
    first = await claim(wait_for_lock=only_one_lane)
    return await claim(wait_for_lock=True) if first.skipped and not first.rows else first


class ClaimService:
    def __init__(
        self,
        *,
        infra: Infrastructure,
        queues: QueueCache,
        events: EventBus,
        limits: QueueLimits,
        low_water_marks: LowWaterMarks,
        durations: DurationHistogram,
    ) -> None:
        self._infra = infra
        self._queues = queues
        self._events = events
        self._limits = limits
        self._low_water_marks = low_water_marks
        self._durations = durations
        self._batcher = ClaimBatcher(infra=infra, low_water_marks=low_water_marks)
        self._wake_timers: dict[int, asyncio.TimerHandle] = {}

    async def claim(self, queues: Sequence[Queue], limit: int, params: ClaimParams) -> ClaimResult:
        """Claims up to `limit` jobs. Each lane is committed on its own."""
        result = await claim_unlocked_lanes_first(
            queues, partial(self._claim_lanes, None, queues, limit, params, frozenset())
        )
        self.record_claimed(result.rows)
        return result

    async def claim_in_transaction(
        self, transaction: Transaction, queues: Sequence[Queue], limit: int, params: ClaimParams, *, wait_for_lock: bool
    ) -> ClaimResult:
        """Claims up to `limit` jobs on the connection of the caller's transaction.

        All lane locks are taken first, in the order of lanes. The caller calls `record_claimed`
        after its commit, because until then no job is claimed.
        """
        if limit <= 0:  # the quota is used up
            return ClaimResult([], self._infra.now() + QUOTA_RETRY_DELAY)
        skipped = await self._lock_lanes(transaction, queues, wait_for_lock=wait_for_lock)
        return await self._claim_lanes(transaction, queues, limit, params, skipped, wait_for_lock=wait_for_lock)

    async def _lock_lanes(self, transaction: Transaction, queues: Sequence[Queue], *, wait_for_lock: bool) -> set[int]:
        """Locks the lanes of limited queues. Returns the lanes whose lock was not free."""
        lanes = sorted(lane for queue in queues if queue.is_limited for lane in queue.all_lanes)
        return {lane for lane in lanes if not await locks.lock_lane(transaction, lane, wait=wait_for_lock)}

    async def _claim_lanes(
        self,
        transaction: Transaction | None,
        queues: Sequence[Queue],
        limit: int,
        params: ClaimParams,
        locked_by_others: Set[int],
        *,
        wait_for_lock: bool,
    ) -> ClaimResult:
        """Claims lane by lane, until there are enough jobs or the client has disconnected."""
        rows: list[ClaimedRow] = []
        retry_times: list[datetime] = []
        is_skipped = bool(locked_by_others)
        for queue, lane in self._lanes(queues):
            if lane in locked_by_others:
                continue
            if params.client is not None and params.client.is_disconnected:
                break
            try:
                result = await self._claim_lane(
                    transaction, queue, lane, limit - len(rows), params, wait_for_lock=wait_for_lock
                )
            except DatabaseUnavailable:
                if not rows or transaction is not None:
                    raise
                break  # the jobs claimed so far are leased and must reach the worker
            rows += result.rows
            is_skipped = is_skipped or result.skipped
            if result.retry_at is not None:
                retry_times.append(result.retry_at)
            if len(rows) >= limit:
                break
            params = params._replace(
                max_bytes=params.max_bytes - sum(row.size for row in result.rows), allow_one_oversized=not rows
            )
        lanes = sum(queue.lanes for queue in queues)
        # `retry_at` only if every lane has one: a lane without one may get a job at any moment.
        retry_at = min(retry_times) if retry_times and len(retry_times) == lanes else None
        return ClaimResult(rows, retry_at, skipped=is_skipped)

    def _lanes(self, queues: Sequence[Queue]) -> list[tuple[Queue, int]]:
        """The lanes of each queue, starting at a random one so that none is always last."""
        lanes: list[tuple[Queue, int]] = []
        for queue in queues:
            first = random.randrange(queue.lanes) if queue.lanes > 1 else 0
            lanes += [(queue, lane) for lane in (*queue.all_lanes[first:], *queue.all_lanes[:first])]
        return lanes

    async def _claim_lane(
        self,
        transaction: Transaction | None,
        queue: Queue,
        lane: int,
        limit: int,
        params: ClaimParams,
        *,
        wait_for_lock: bool,
    ) -> ClaimResult:
        if not queue.is_limited:
            return await self._claim_unlimited(transaction, queue, lane, limit, params)
        if transaction is not None:
            return await self._claim_limited(transaction, queue, lane, limit, params, wait_for_lock=wait_for_lock)
        return await self._claim_and_commit(queue, lane, limit, params, wait_for_lock=wait_for_lock)

    @retry_after_deadlock
    async def _claim_and_commit(
        self, queue: Queue, lane: int, limit: int, params: ClaimParams, *, wait_for_lock: bool
    ) -> ClaimResult:
        async with self._infra.db.transaction() as transaction:
            return await self._claim_limited(transaction, queue, lane, limit, params, wait_for_lock=wait_for_lock)

    async def _claim_unlimited(
        self, transaction: Transaction | None, queue: Queue, lane: int, limit: int, params: ClaimParams
    ) -> ClaimResult:
        held_groups = self._queues.held_groups(lane)
        policy = LanePolicy(held_groups, fair=queue.fair)
        if transaction is not None:
            rows = await self._low_water_marks.claim(transaction, lane, limit, params, policy, self._infra.now())
            return ClaimResult(rows)
        # Claims that differ only in limit, worker, lease length and client may share a statement.
        may_share = params.job_types is None and params.quota_owner is None and params.allow_one_oversized
        if held_groups is None and may_share:
            return ClaimResult(await self._batcher.add(lane, ClaimCall(limit, params)))
        async with self._infra.db.autocommit() as connection:
            rows = await self._low_water_marks.claim(connection, lane, limit, params, policy, self._infra.now())
            return ClaimResult(rows)

    def may_be_truncated(self, rows: Sequence[ClaimedRow], limit: int, max_bytes: int) -> bool:
        return self._batcher.may_be_truncated(rows, limit, max_bytes)

    async def finish(self) -> None:
        await self._batcher.finish()

    async def _claim_limited(
        self, db: Executor, queue: Queue, lane: int, limit: int, params: ClaimParams, *, wait_for_lock: bool
    ) -> ClaimResult:
        allowance = await self._limits.acquire(db, queue, lane, limit, wait=wait_for_lock)
        if allowance is None:
            return ClaimResult([], skipped=True)
        rows: list[ClaimedRow] = []
        if allowance.limit > 0:
            policy = LanePolicy(
                self._queues.held_groups(lane),
                fair=queue.fair,
                uses_slot=True if queue.max_running is not None else None,
            )
            rows = await self._low_water_marks.claim(db, lane, allowance.limit, params, policy, allowance.now)
            await self._limits.record(db, queue, lane, len(rows), allowance.now)
        if allowance.retry_at is not None and len(rows) == allowance.limit < limit:
            # A waiting poller, or the next to arrive, then gets the jobs that the rate allows.
            self._wake_at(queue.id, allowance.retry_at)
        return ClaimResult(rows, allowance.retry_at if allowance.limit == 0 else None)

    def _wake_at(self, queue_id: int, instant: datetime) -> None:
        """Wakes a poller of the queue at this time.

        There is one timer per queue and process, however many pollers have claimed; an earlier time
        replaces a later one.
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

    def record_claimed(self, rows: Sequence[ClaimedRow]) -> None:
        """Counts claimed jobs and their wait times, and publishes them."""
        self._infra.metrics.claimed.inc(len(rows))
        for lane in {row.lane for row in rows}:
            claimed = [row for row in rows if row.lane == lane]
            waits = [row.waited_seconds for row in claimed if row.waited_seconds is not None]
            self._durations.record(lane, "wait", waits)
            self._events.publish_moved(lane, claimed)
