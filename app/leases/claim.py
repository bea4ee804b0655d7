"""Takes jobs out of lanes: queue after queue in order of preference, past those that are paused, through the gate where there is one."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from operator import attrgetter
from typing import NamedTuple

from app.concurrency.queue_limits import QueueLimits
from app.db.batcher import Batcher
from app.db.infrastructure import Infrastructure
from app.db.pool import Executor, Transaction, retry_after_deadlock
from app.errors import DatabaseUnavailable
from app.jobs.signals import Signals
from app.leases import store
from app.leases.duration_histogram import DurationHistogram
from app.leases.low_water_marks import LowWaterMarks
from app.leases.store import ClaimedRow, ClaimParams, LanePolicy, PollSlice
from app.locks import store as keys
from app.queues.cache import Queue, QueueCache

DRAIN_POLL_MS = timedelta(seconds=1)


class ClaimCall(NamedTuple):
    """One of those that may share a statement."""

    most: int
    params: ClaimParams


class ClaimResult(NamedTuple):
    """The result of a claim. `again_at`: when the first exhausted rate allows a job again. `skipped`: a lane lock was not free.
    `replayed`: the rows are the leases of a repeated claim, none if they have ended."""

    rows: list[ClaimedRow]
    retry_at: datetime | None = None
    skipped: bool = False
    replayed: bool = False


async def in_two_passes(queues: Sequence[Queue], take: Callable[[bool], Awaitable[ClaimResult]]) -> ClaimResult:
    """`take(wait)` claims from the queues. The first pass skips lanes whose lock is not free, so that one limited queue does not hold up
    the others; the second waits for the locks, and runs only if the first got nothing and skipped something."""
    first = await take(sum(queue.lanes for queue in queues) <= 1)
    return await take(True) if first.skipped and not first.rows else first


class ClaimService:
    def __init__(self, infra: Infrastructure, queues: QueueCache, signals: Signals, times: DurationHistogram) -> None:
        self._infra = infra
        self._queues = queues
        self._signals = signals
        self._times = times
        self._gate = QueueLimits(infra)
        self.floors = LowWaterMarks(infra.db)
        signals.on_back = self.floors.lower
        self._claims = Batcher("claim", self._take_together, infra.settings.acquire_timeout_seconds, attrgetter("most"))
        self._alarms: dict[str, asyncio.TimerHandle] = {}
        self.on_rate: Callable[[str], None] = lambda _queue: None
        self.on_served: Callable[[int, Iterable[tuple[str | None, int | None]]], None] = (
            lambda _lane, _group_scheduler: None
        )

    async def queues(self, names: Sequence[str]) -> list[Queue]:
        """Those that hand out, as they are configured now."""
        await self._infra.versions.ensure_fresh()
        return [queue for queue in await self._queues.find_all(names) if not queue.paused]

    async def take(
        self, queues: Sequence[Queue], most: int, params: ClaimParams, *, wait: bool, on: Transaction | None = None
    ) -> ClaimResult:
        """`on`: the transaction of a claim with a key, which has its only connection. It holds all gates from the start, in the order of
        lanes. Without `wait` it skips lanes whose lock is not free."""
        skipped: set[int] = set()
        if on is not None:
            for lane in sorted(lane for queue in queues if queue.is_limited for lane in queue.all_lanes):
                skipped |= set() if await keys.lock_lane(on, lane, wait=wait) else {lane}
        taken: list[ClaimedRow] = []
        if most <= 0:  # a quota that is used up
            return ClaimResult(taken, self._infra.now() + DRAIN_POLL_MS)
        waits: list[datetime] = []
        for queue, lane in self._lanes(queues):
            if lane in skipped:
                continue
            try:
                take = await self._take_lane(on, queue, lane, most - len(taken), params, wait=wait)
            except DatabaseUnavailable:
                if not taken or on is not None:
                    raise
                break  # what we have is leased and must reach the worker
            taken += take.rows
            skipped |= {lane} if take.skipped else set()
            waits += [take.retry_at] if take.retry_at else []
            if len(taken) >= most:
                break
            params = params._replace(max_bytes=params.max_bytes - sum(map(_size, take.rows)), at_least_one=not taken)
        self.count(taken)
        lanes = sum(queue.lanes for queue in queues)
        # `again_at` only if every lane has one: the others may get a job at any moment.
        return ClaimResult(taken, min(waits) if waits and len(waits) == lanes else None, skipped=bool(skipped))

    def _lanes(self, queues: Sequence[Queue]) -> list[tuple[Queue, int]]:
        """The lanes of one queue from a random one on, so that none is always last."""
        lanes: list[tuple[Queue, int]] = []
        for queue in queues:
            first = random.randrange(queue.lanes) if queue.lanes > 1 else 0
            lanes += [(queue, lane) for lane in (*queue.all_lanes[first:], *queue.all_lanes[:first])]
        return lanes

    async def _take_lane(
        self, on: Transaction | None, queue: Queue, lane: int, most: int, params: ClaimParams, *, wait: bool
    ) -> ClaimResult:
        if not queue.is_limited:
            return await self._take_ungated(on, queue, lane, most, params)
        if on is not None:
            return await self._take_through_gate(on, queue, lane, most, params, wait=wait)
        return await self._take_in_transaction(queue, lane, most, params, wait=wait)

    @retry_after_deadlock
    async def _take_in_transaction(
        self, queue: Queue, lane: int, most: int, params: ClaimParams, *, wait: bool
    ) -> ClaimResult:
        async with self._infra.db.transaction() as transaction:
            return await self._take_through_gate(transaction, queue, lane, most, params, wait=wait)

    async def _take_ungated(
        self, on: Transaction | None, queue: Queue, lane: int, most: int, params: ClaimParams
    ) -> ClaimResult:
        rules = LanePolicy(self._queues.held_groups(lane), in_turn=queue.fair)
        if on is not None:
            return ClaimResult(await self.floors.claim(on, lane, most, params, rules, self._infra.now()))
        if rules == LanePolicy() and params.accepts_any_type:
            return ClaimResult(await self._claims.add(lane, ClaimCall(most, params)))
        async with self._infra.db.held() as connection:
            return ClaimResult(await self.floors.claim(connection, lane, most, params, rules, self._infra.now()))

    async def _take_together(self, lane: int, claims: Sequence[ClaimCall]) -> Sequence[list[ClaimedRow]]:
        """First come first served. For who has left while in line nothing is claimed."""
        there = [claim for claim in claims if claim.params.client is None or not claim.params.client.gone]
        if not there:
            return [[] for _ in claims]
        shares = [PollSlice(most, params.worker_id, params.lease_seconds) for most, params in there]
        params = there[0].params._replace(shares=shares)
        async with self._infra.db.held() as connection:
            rows = await self.floors.claim(
                connection, lane, sum(claim.most for claim in there), params, LanePolicy(), self._infra.now()
            )
        taken: dict[int, list[ClaimedRow]] = {id(claim): [] for claim in claims}
        for row in rows:
            taken[id(there[row.share - 1])].append(row)
        unserved = [claim for claim in there if not taken[id(claim)]]
        if unserved and any(clipped(taken[id(claim)], claim.most, claim.params.max_bytes) for claim in there):
            with suppress(DatabaseUnavailable):  # what the others have is leased and must reach their workers
                taken |= zip(map(id, unserved), await self._take_together(lane, unserved), strict=True)
        return list(taken.values())

    async def finish(self) -> None:
        await self._claims.finish()

    async def _take_through_gate(
        self, on: Executor, queue: Queue, lane: int, most: int, params: ClaimParams, *, wait: bool
    ) -> ClaimResult:
        leave = await self._gate.acquire(on, queue, lane, most, wait=wait)
        if leave is None:
            return ClaimResult([], skipped=True)
        rows: list[ClaimedRow] = []
        if leave.most > 0:
            rules = LanePolicy(
                self._queues.held_groups(lane),
                in_turn=queue.fair,
                counted=True if queue.max_running is not None else None,
            )
            rows = await self.floors.claim(on, lane, leave.most, params, rules, leave.now)
            await self._gate.note(on, queue, lane, len(rows), leave.now)
        if leave.retry_at is not None and len(rows) == leave.most < most:
            self._wake_at(queue.name, leave.retry_at)  # who comes next, or waits already, gets what the rate gives then
        return ClaimResult(rows, leave.retry_at if leave.most == 0 else None)

    def _wake_at(self, queue: str, instant: datetime) -> None:
        """One alarm per queue and process, however many polls have asked: the earliest."""
        loop = asyncio.get_running_loop()
        at = loop.time() + max(0.0, (instant - self._infra.now()) / timedelta(seconds=1))
        set_before = self._alarms.get(queue)
        if set_before is not None and set_before.when() <= at:
            return
        if set_before is not None:
            set_before.cancel()
        self._alarms[queue] = loop.call_at(at, self._wake, queue)

    def _wake(self, queue: str) -> None:
        self._alarms.pop(queue, None)
        self.on_rate(queue)

    def count(self, rows: Sequence[ClaimedRow]) -> None:
        self._infra.metrics.claimed.inc(len(rows))
        for lane in {row.lane for row in rows}:
            own = [row for row in rows if row.lane == lane]
            self._times.record(lane, "wait", [row.waited for row in own if row.waited is not None])
            queue = self._queues.by_lane(lane)
            if queue.fair:
                self.on_served(lane, [(row.group_key, row.turn) for row in own])
                # There is room for more of their groups; with a limit only when they have ended.
                self._signals.left(
                    lane, [row.group_key for row in own if queue.per_group is None or row.group_key is None]
                )


def clipped(rows: Sequence[ClaimedRow], most: int, max_bytes: int) -> bool:
    """Whether jobs may have been left behind as the next did not fit into the answer. No job is as large as half of one."""
    return len(rows) < most and sum(map(_size, rows)) > max_bytes // 2


def _size(row: ClaimedRow) -> int:
    """As the claim statement measures it."""
    return store.ENVELOPE_BYTES + sum(
        len(text.encode()) for text in (row.payload, row.checkpoint, row.progress, row.tags, row.metadata) if text
    )
