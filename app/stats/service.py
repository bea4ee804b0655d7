"""Assembles the statistics of all queues or of one queue.

The cost grows with the number of queues, and not with the number of jobs.
"""

from collections.abc import Sequence
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
from app.stats.store import DurationCount, DurationRow, RateRow

WORKER_SECONDS = 60  # the statistics count the workers that were seen within this time


class StatsService:
    def __init__(
        self, *, infra: Infrastructure, queues: QueueCache, pollers: PollerRegistry, durations: DurationHistogram
    ) -> None:
        self._infra = infra
        self._queues = queues
        self._pollers = pollers
        self._durations = durations
        self._watched: set[str] = set()

    async def all_stats(self, access: Access) -> Stats:
        await self._queues.load_all()
        waiting_polls = (
            self._pollers.open_claims
            if access.all_queues
            else sum(self._pollers.count(name) for name in self._pollers.polled_queues() if access.allows(name))
        )
        stats = await self._stats(await self._queues.all_lanes(access), UNSET, waiting_polls, HealthLimits())
        return _for_access(stats, access)

    async def count_leases(self) -> int:
        """Counts the leases of all queues, whichever broker granted them."""
        await self._queues.load_all()
        return (await store.counts(self._infra.db, await self._queues.all_lanes())).running

    async def queue_stats(self, name: str, access: Access) -> Stats:
        queue = await self._queues.get(name)
        return _for_access(await self._queue_stats(queue), access)

    async def _queue_stats(self, queue: Queue) -> Stats:
        limits = value_or(queue.config.health, HealthLimits())
        return await self._stats(queue.all_lanes, queue.name, self._pollers.count(queue.name), limits)

    async def watch_health(self) -> None:
        """Sets the health metric of each queue that has health limits.

        A background service calls this periodically.
        """
        watched = {queue.name: queue for queue in self._queues.all() if queue.config.health is not UNSET}
        for queue in watched.values():
            self._infra.metrics.queue_health.labels(queue.name).set(
                health.LEVELS.index((await self._queue_stats(queue)).verdict)
            )
        for name in self._watched - watched.keys():
            self._infra.metrics.queue_health.remove(name)
        self._watched = set(watched)

    async def aggregate(self) -> None:
        """Adds the stored deltas to the totals and rates.

        A background service calls this periodically.
        """
        for lane in await store.unaggregated_lanes(self._infra.db):
            await store.aggregate(self._infra.db, lane)

    async def write_durations(self) -> None:
        """Writes the durations that were recorded since the last call.

        If that fails, the next call writes them.
        """
        counts = self._durations.take()
        if not counts:
            return
        try:
            durations = [DurationCount(*key, total) for key, total in sorted(counts.items())]
            await store.add_durations(self._infra.db, durations, self._infra.now())
        except Exception:
            self._durations.restore(counts)
            raise

    async def _stats(
        self, lanes: Sequence[int], name: str | UnsetType, waiting_polls: int, limits: HealthLimits
    ) -> Stats:
        reads, now = self._infra.read_connections, self._infra.now()
        counts = StateCounts(**(await store.counts(reads, lanes))._asdict())
        oldest = [
            run_at
            for run_at in (await store.oldest_ready(reads, lanes), await store.oldest_pending(reads, lanes))
            if run_at is not None
        ]
        age = max(0, round((now - min(oldest)).total_seconds())) if oldest else None
        durations = await store.durations(reads, lanes, now - timedelta(hours=1))
        rates = _rates(await store.rates(reads, lanes, now))
        verdict, reasons = health.assess(
            limits, depth=counts.ready, age=age, dead=rates.dead.last_60m, waiting_polls=waiting_polls
        )
        return Stats(
            queue=name,
            counts=counts,
            oldest_ready_age_seconds=unset_if_none(age),
            rates=rates,
            wait_time=_percentiles(durations, "wait"),
            run_time=_percentiles(durations, "run"),
            waiting_polls=waiting_polls,
            workers=await store.workers_seen(reads, now - timedelta(seconds=WORKER_SECONDS)),
            verdict=verdict,
            reasons=reasons,
            server_time=now,
        )


def _for_access(stats: Stats, access: Access) -> Stats:
    """Sets the number of workers to 0 if the API key cannot access all queues.

    The number counts the workers of all queues, because workers do not belong to a queue.
    """
    return stats if access.all_queues else msgspec.structs.replace(stats, workers=0)


def _rates(row: RateRow) -> Rates:
    def rate(name: str) -> Rate:
        return Rate(**{f"last_{span}m": getattr(row, f"{name}_{span}") or 0 for span in (1, 5, 60)})

    return Rates(enqueued=rate("enqueued"), completed=rate("completed"), failed=rate("failed"), dead=rate("dead"))


def _percentiles(rows: Sequence[DurationRow], kind: str) -> Percentiles | UnsetType:
    kind_rows = [row for row in rows if row.kind == kind]
    if not kind_rows:
        return UNSET
    return Percentiles(
        p50_ms=_percentile(kind_rows, 0.5), p95_ms=_percentile(kind_rows, 0.95), p99_ms=_percentile(kind_rows, 0.99)
    )


def _percentile(rows: Sequence[DurationRow], fraction: float) -> float:
    """Returns the upper bound of the histogram bucket that contains the percentile.

    `rows` are in the order of the buckets.
    """
    remaining = fraction * sum(row.total for row in rows)
    for row in rows:
        remaining -= row.total
        if remaining <= 0:
            return float(BUCKET_BOUNDS[row.bucket])
    return float(BUCKET_BOUNDS[rows[-1].bucket])
