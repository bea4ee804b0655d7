"""Puts the statistics together, for everything or for one queue. Cost grows with the number of queues, not of jobs."""

from collections.abc import Callable, Sequence
from datetime import timedelta

import msgspec

from app.db.infrastructure import Infrastructure
from app.http.authorization import Access
from app.http.schema_types import UNSET, UnsetType, unset_if_none, value_or
from app.leases.duration_histogram import BUCKET_BOUNDS, DurationHistogram
from app.matching.pollers import PollerRegistry
from app.queues.cache import Queue, QueueCache
from app.queues.schemas import HealthLimits
from app.stats import health, store
from app.stats.schemas import Percentiles, Rate, Rates, StateCounts, Stats
from app.stats.store import CountRow, DurationRow, RateRow

WORKER_SECONDS = 60


class StatsService:
    def __init__(
        self, infra: Infrastructure, queues: QueueCache, waiting: PollerRegistry, times: DurationHistogram
    ) -> None:
        self._infra = infra
        self._queues = queues
        self._waiting = waiting
        self._times = times
        self._watched: set[str] = set()

    async def everything(self, access: Access) -> Stats:
        await self._queues.refresh()
        polls = (
            self._waiting.parked
            if access.everything
            else sum(self._waiting.waiting(name) for name in self._waiting.awaited() if access.allows(name))
        )
        stats = await self._stats(self._queues.lanes(access=access), UNSET, polls, HealthLimits())
        return stats if access.everything else msgspec.structs.replace(stats, workers=0)  # whose they are, nobody knows

    async def count_leases(self) -> int:
        """Counts the jobs that workers hold, of all queues and brokers."""
        await self._queues.refresh()
        return _counts(await store.counts(self._infra.db, self._queues.lanes())).running

    async def queue_stats(self, name: str) -> Stats:
        queue = await self._queues.get(name)
        return await self._of(queue)

    async def _of(self, queue: Queue) -> Stats:
        limits = value_or(queue.config.health, HealthLimits())
        return await self._stats(queue.all_lanes, queue.name, self._waiting.waiting(queue.name), limits)

    async def watch_health(self) -> None:
        """The chore: of queues that have limits, for /metrics."""
        watched = {queue.name: queue for queue in self._queues.known() if queue.config.health is not UNSET}
        for queue in watched.values():
            self._infra.metrics.queue_health.labels(queue.name).set(
                health.LEVELS.index((await self._of(queue)).decision)
            )
        for name in self._watched - watched.keys():
            self._infra.metrics.queue_health.remove(name)
        self._watched = set(watched)

    async def aggregate(self) -> None:
        """The chore: deltas into totals and rates."""
        for lane in await store.unaggregated_lanes(self._infra.db):
            await store.aggregate(self._infra.db, lane)

    async def write_durations(self) -> None:
        taken = self._times.take()
        if not taken:
            return
        try:
            await store.add_durations(self._infra.db, sorted((*key, n) for key, n in taken.items()), self._infra.now())
        except Exception:
            self._times.restore(taken)
            raise

    async def _stats(self, lanes: Sequence[int], name: str | UnsetType, polls: int, limits: HealthLimits) -> Stats:
        reads, now = self._infra.reads, self._infra.now()
        counts = _counts(await store.counts(reads, lanes))
        heads = [
            head
            for head in (await store.oldest_ready(reads, lanes), await store.oldest_pending(reads, lanes))
            if head is not None
        ]
        age = max(0, round((now - min(heads)).total_seconds())) if heads else None
        times = await store.durations(reads, lanes, now - timedelta(hours=1))
        rates = _rates(await store.rates(reads, lanes, now))
        decision, reasons = health.assess(limits, depth=counts.ready, age=age, dead=rates.dead.last_60m, polls=polls)
        return Stats(
            queue=name,
            counts=counts,
            oldest_ready_age_seconds=unset_if_none(age),
            rates=rates,
            wait_time=_percentiles(times, "wait"),
            run_time=_percentiles(times, "run"),
            waiting_polls=polls,
            workers=await store.workers_seen(reads, now - timedelta(seconds=WORKER_SECONDS)),
            decision=decision,
            reasons=reasons,
            server_time=now,
        )


def _counts(rows: Sequence[CountRow]) -> StateCounts:
    def total(of: Callable[[CountRow], int]) -> int:
        return sum(of(row) for row in rows)

    return StateCounts(
        scheduled=total(lambda row: row.scheduled),
        blocked=total(lambda row: row.blocked),
        ready=total(lambda row: row.ready),
        running=total(lambda row: row.running),
        completed=total(lambda row: row.completed),
        dead=total(lambda row: row.dead),
        cancelled=total(lambda row: row.cancelled),
    )


def _rates(row: RateRow) -> Rates:
    def rate(name: str) -> Rate:
        return Rate(**{f"last_{span}m": getattr(row, f"{name}_{span}") or 0 for span in (1, 5, 60)})

    return Rates(enqueued=rate("enqueued"), completed=rate("completed"), failed=rate("failed"), dead=rate("dead"))


def _percentiles(rows: Sequence[DurationRow], kind: str) -> Percentiles | UnsetType:
    own = [row for row in rows if row.kind == kind]
    if not own:
        return UNSET
    return Percentiles(p50_ms=_percentile(own, 0.5), p95_ms=_percentile(own, 0.95), p99_ms=_percentile(own, 0.99))


def _percentile(rows: Sequence[DurationRow], share: float) -> float:
    """The upper bound of the bucket in which the share is reached."""
    left = share * sum(row.n for row in rows)
    for row in rows:
        left -= row.n
        if left <= 0:
            return float(BUCKET_BOUNDS[row.bucket])
    return float(BUCKET_BOUNDS[rows[-1].bucket])
