"""Puts the statistics together, for everything or for one queue. Cost grows with the number of queues, not of jobs."""

from collections.abc import Callable, Sequence
from datetime import timedelta

from app.db.floor import Floor
from app.db.lanes import lanes_of
from app.leases.times import LADDER, Times
from app.leases.waiting import WaitingRoom
from app.queues.registry import Queues
from app.stats import store
from app.stats.schemas import Percentiles, Rate, Rates, StateCounts, Stats
from app.stats.store import CountRow, RateRow, TimeRow
from app.web.shapes import UNSET, UnsetType, or_unset

STALE_SECONDS = 300  # work that waits this long while nobody asks for it deserves a look
WORKER_SECONDS = 60


class Reckoning:
    def __init__(self, floor: Floor, queues: Queues, waiting: WaitingRoom, times: Times) -> None:
        self._floor = floor
        self._queues = queues
        self._waiting = waiting
        self._times = times

    async def everything(self) -> Stats:
        await self._queues.refresh()
        return await self._stats(self._queues.lanes(), UNSET, self._waiting.parked)

    async def of_queue(self, name: str) -> Stats:
        queue = await self._queues.get(name)
        return await self._stats(lanes_of(queue.id, queue.lanes), name, self._waiting.waiting(name))

    async def fold(self) -> None:
        """The chore: deltas into totals and rates."""
        for lane in await store.unfolded_lanes(self._floor.db):
            await store.fold(self._floor.db, lane)

    async def write_times(self) -> None:
        taken = self._times.take()
        if not taken:
            return
        try:
            await store.add_times(self._floor.db, sorted((*key, n) for key, n in taken.items()), self._floor.now())
        except Exception:
            self._times.put_back(taken)
            raise

    async def _stats(self, lanes: Sequence[int], name: str | UnsetType, polls: int) -> Stats:
        db, now = self._floor.db, self._floor.now()
        rows = await store.counts(db, lanes)
        oldest = await store.oldest_ready(db, lanes)
        age = None if oldest is None else max(0, round((now - oldest).total_seconds()))
        times = await store.times(db, lanes, now - timedelta(hours=1))
        reasons = _reasons(age, polls)
        return Stats(
            queue=name,
            counts=_counts(rows),
            oldest_ready_age_seconds=or_unset(age),
            rates=_rates(await store.rates(db, lanes, now)),
            wait_time=_percentiles(times, "wait"),
            run_time=_percentiles(times, "run"),
            waiting_polls=polls,
            workers=await store.workers_seen(db, now - timedelta(seconds=WORKER_SECONDS)),
            verdict="warning" if reasons else "ok",
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


def _percentiles(rows: Sequence[TimeRow], kind: str) -> Percentiles | UnsetType:
    own = [row for row in rows if row.kind == kind]
    if not own:
        return UNSET
    return Percentiles(p50_ms=_percentile(own, 0.5), p95_ms=_percentile(own, 0.95), p99_ms=_percentile(own, 0.99))


def _percentile(rows: Sequence[TimeRow], share: float) -> float:
    """The upper bound of the bucket in which the share is reached."""
    left = share * sum(row.n for row in rows)
    for row in rows:
        left -= row.n
        if left <= 0:
            return float(LADDER[row.bucket])
    return float(LADDER[rows[-1].bucket])


def _reasons(age: int | None, polls: int) -> list[str]:
    if age is not None and age > STALE_SECONDS and polls == 0:
        return [f"the oldest ready job has waited {age} s and no poll is waiting here"]
    return []
