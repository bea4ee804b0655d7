"""Claims ready jobs, queue by queue in order of preference, within the limits of each queue."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import NamedTuple

from app.concurrency.queue_limits import QueueLimits
from app.db.batcher import Batcher
from app.db.infrastructure import Infrastructure
from app.db.pool import Executor, Transaction, retry_after_deadlock
from app.errors import DatabaseUnavailable
from app.events import EventBus, QueueReady
from app.jobs.rows import ClaimedRow
from app.leases import store
from app.leases.duration_histogram import DurationHistogram
from app.leases.low_water_marks import LowWaterMarks
from app.leases.store import ClaimParams, LanePolicy, PollSlice
from app.locks import store as keys
from app.queues.cache import Queue, QueueCache

QUOTA_RETRY_DELAY = timedelta(seconds=1)


class ClaimCall(NamedTuple):
    """One of the calls that may share a statement."""

    limit: int
    params: ClaimParams


class ClaimResult(NamedTuple):
    """The result of a claim.

    retry_at   when the first exhausted rate limit allows a job again
    skipped    whether a lane was skipped because its lock was not free
    replayed   whether the rows are the leases of a repeated claim; none if they have ended
    """

    rows: list[ClaimedRow]
    retry_at: datetime | None = None
    skipped: bool = False
    replayed: bool = False


async def claim_unlocked_lanes_first(
    queues: Sequence[Queue], claim: Callable[[bool], Awaitable[ClaimResult]]
) -> ClaimResult:
    """Calls `claim(wait)` once or twice.

    The first call skips lanes whose lock is not free, so that one limited queue does not hold up
    the others. The second call waits for the locks. It runs only if the first claimed nothing and
    skipped a lane.
    """
    first = await claim(sum(queue.lanes for queue in queues) <= 1)
    return await claim(True) if first.skipped and not first.rows else first


class ClaimBatcher(Batcher[int, ClaimCall, list[ClaimedRow]]):
    """Claims for concurrent callers in one statement for each lane."""

    def __init__(self, *, infra: Infrastructure, low_water_marks: LowWaterMarks) -> None:
        super().__init__("claim", infra.settings.acquire_timeout_seconds)
        self._infra = infra
        self._low_water_marks = low_water_marks

    def weight(self, item: ClaimCall) -> int:
        return item.limit

    async def run_batch(self, lane: int, calls: Sequence[ClaimCall]) -> Sequence[list[ClaimedRow]]:
        """First come, first served.

        Claims nothing for clients that disconnected while their call was queued.
        """
        connected = [call for call in calls if call.params.client is None or not call.params.client.is_disconnected]
        if not connected:
            return [[] for _ in calls]
        slices = [PollSlice(limit, params.worker_id, params.lease_seconds) for limit, params in connected]
        params = connected[0].params._replace(poll_slices=slices)
        async with self._infra.db.autocommit() as connection:
            rows = await self._low_water_marks.claim(
                connection, lane, sum(call.limit for call in connected), params, LanePolicy(), self._infra.now()
            )
        claimed: dict[int, list[ClaimedRow]] = {id(call): [] for call in calls}
        for row in rows:
            claimed[id(connected[row.share - 1])].append(row)
        unserved = [call for call in connected if not claimed[id(call)]]
        if unserved and any(
            may_be_truncated(claimed[id(call)], call.limit, call.params.max_bytes) for call in connected
        ):
            # The jobs of the other calls are leased and must reach their workers.
            with suppress(DatabaseUnavailable):
                claimed |= zip(map(id, unserved), await self.run_batch(lane, unserved), strict=True)
        return list(claimed.values())


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
        self._alarms: dict[int, asyncio.TimerHandle] = {}

    async def queues(self, names: Sequence[str]) -> list[Queue]:
        """The queues that are not paused, with their current configuration."""
        await self._infra.config_versions.ensure_fresh()
        return [queue for queue in await self._queues.find_all(names) if not queue.paused]

    async def claim(
        self,
        queues: Sequence[Queue],
        limit: int,
        params: ClaimParams,
        *,
        wait: bool,
        transaction: Transaction | None = None,
    ) -> ClaimResult:
        """Claims up to `limit` jobs.

        With `transaction`, everything runs on its connection, and all lane locks are taken first,
        in the order of lanes. Without `wait`, lanes whose lock is not free are skipped.
        """
        skipped: set[int] = set()
        if transaction is not None:
            for lane in sorted(lane for queue in queues if queue.is_limited for lane in queue.all_lanes):
                skipped |= set() if await keys.lock_lane(transaction, lane, wait=wait) else {lane}
        rows: list[ClaimedRow] = []
        if limit <= 0:  # the quota is used up
            return ClaimResult(rows, self._infra.now() + QUOTA_RETRY_DELAY)
        retry_times: list[datetime] = []
        for queue, lane in self._lanes(queues):
            if lane in skipped:
                continue
            try:
                result = await self._claim_lane(transaction, queue, lane, limit - len(rows), params, wait=wait)
            except DatabaseUnavailable:
                if not rows or transaction is not None:
                    raise
                break  # the jobs claimed so far are leased and must reach the worker
            rows += result.rows
            skipped |= {lane} if result.skipped else set()
            retry_times += [result.retry_at] if result.retry_at else []
            if len(rows) >= limit:
                break
            params = params._replace(
                max_bytes=params.max_bytes - sum(map(_size, result.rows)), allow_one_oversized=not rows
            )
        self.record_claimed(rows)
        lanes = sum(queue.lanes for queue in queues)
        # `retry_at` only if every lane has one: the other lanes may get a job at any moment.
        retry_at = min(retry_times) if retry_times and len(retry_times) == lanes else None
        return ClaimResult(rows, retry_at, skipped=bool(skipped))

    def _lanes(self, queues: Sequence[Queue]) -> list[tuple[Queue, int]]:
        """The lanes of each queue, starting at a random one so that none is always last."""
        lanes: list[tuple[Queue, int]] = []
        for queue in queues:
            first = random.randrange(queue.lanes) if queue.lanes > 1 else 0
            lanes += [(queue, lane) for lane in (*queue.all_lanes[first:], *queue.all_lanes[:first])]
        return lanes

    async def _claim_lane(
        self, transaction: Transaction | None, queue: Queue, lane: int, limit: int, params: ClaimParams, *, wait: bool
    ) -> ClaimResult:
        if not queue.is_limited:
            return await self._claim_unlimited(transaction, queue, lane, limit, params)
        if transaction is not None:
            return await self._claim_limited(transaction, queue, lane, limit, params, wait=wait)
        return await self._claim_in_transaction(queue, lane, limit, params, wait=wait)

    @retry_after_deadlock
    async def _claim_in_transaction(
        self, queue: Queue, lane: int, limit: int, params: ClaimParams, *, wait: bool
    ) -> ClaimResult:
        async with self._infra.db.transaction() as transaction:
            return await self._claim_limited(transaction, queue, lane, limit, params, wait=wait)

    async def _claim_unlimited(
        self, transaction: Transaction | None, queue: Queue, lane: int, limit: int, params: ClaimParams
    ) -> ClaimResult:
        policy = LanePolicy(self._queues.held_groups(lane), fair=queue.fair)
        if transaction is not None:
            rows = await self._low_water_marks.claim(transaction, lane, limit, params, policy, self._infra.now())
            return ClaimResult(rows)
        if policy == LanePolicy() and params.is_batchable:
            return ClaimResult(await self._batcher.add(lane, ClaimCall(limit, params)))
        async with self._infra.db.autocommit() as connection:
            rows = await self._low_water_marks.claim(connection, lane, limit, params, policy, self._infra.now())
            return ClaimResult(rows)

    async def finish(self) -> None:
        await self._batcher.finish()

    async def _claim_limited(
        self, db: Executor, queue: Queue, lane: int, limit: int, params: ClaimParams, *, wait: bool
    ) -> ClaimResult:
        allowance = await self._limits.acquire(db, queue, lane, limit, wait=wait)
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
        """Sets an alarm: one per queue and process, however many pollers have claimed.

        The earliest counts.
        """
        loop = asyncio.get_running_loop()
        when = loop.time() + max(0.0, (instant - self._infra.now()) / timedelta(seconds=1))
        current = self._alarms.get(queue_id)
        if current is not None and current.when() <= when:
            return
        if current is not None:
            current.cancel()
        self._alarms[queue_id] = loop.call_at(when, self._wake, queue_id)

    def _wake(self, queue_id: int) -> None:
        self._alarms.pop(queue_id, None)
        self._events.publish(QueueReady(queue_id))

    def record_claimed(self, rows: Sequence[ClaimedRow]) -> None:
        """Counts claimed jobs and their wait times, and publishes them."""
        self._infra.metrics.claimed.inc(len(rows))
        for lane in {row.lane for row in rows}:
            claimed = [row for row in rows if row.lane == lane]
            self._durations.record(lane, "wait", [row.waited for row in claimed if row.waited is not None])
            self._events.publish_moved(lane, claimed)


def may_be_truncated(rows: Sequence[ClaimedRow], limit: int, max_bytes: int) -> bool:
    """Whether jobs may have been left behind because the next did not fit into the response.

    No job is as large as half of a response.
    """
    return len(rows) < limit and sum(map(_size, rows)) > max_bytes // 2


def _size(row: ClaimedRow) -> int:
    """The size as the claim statement measures it."""
    return store.ENVELOPE_BYTES + sum(
        len(text.encode()) for text in (row.payload, row.checkpoint, row.progress, row.tags, row.metadata) if text
    )
