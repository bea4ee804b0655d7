"""What happens with no request. Each chore is one `run_once`; two processes doing the same one at once do no harm."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from app.db.infrastructure import Infrastructure
from app.db.lanes import by_lane
from app.db.pool import for_each
from app.dead_letters import store as letters
from app.dead_letters.service import DeadLetterService
from app.enqueue.uniqueness import RECHECK_AFTER
from app.jobs import store as jobs
from app.jobs.signals import Move, Signals
from app.leases import store as leases
from app.leases.retry_decision import EXPIRED, LeaseEnd
from app.leases.settle import SettlementService
from app.locks import store as keys
from app.log import log
from app.maintenance import store
from app.matching.pollers import PollerRegistry
from app.queues.cache import QueueCache
from app.stats import store as stats
from app.workers import store as workers

BATCH = 500  # bounds every sweep
LOOK_BACK = timedelta(seconds=5)  # how far before the last sweep the next one begins
FULL_SWEEP_EVERY = 20  # sweeps; a lease can be written with an end that had already been swept past
DAYS_AHEAD = 3
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class LeaseRescuer:
    """running -> ready | dead | cancelled, for leases that ran out."""

    def __init__(self, infra: Infrastructure, settlements: SettlementService) -> None:
        self._infra = infra
        self._settlements = settlements
        self._swept_until = _LONG_AGO
        self._sweeps = 0

    @property
    def after(self) -> datetime:
        """Where the last sweep ended: the index's start is full of dead entries of jobs that were settled in time."""
        return _LONG_AGO if self._sweeps % FULL_SWEEP_EVERY == 0 else self._swept_until - LOOK_BACK

    def mark_scanned(self, until: datetime) -> None:
        """No lease that has ended by then is left."""
        self._swept_until = until
        self._sweeps += 1

    async def run_once(self) -> None:
        until, after, expired = self._infra.now(), self.after, 0
        while rows := await leases.expired_leases(self._infra.db, after, until, BATCH):
            ended = await self._settlements.end(
                [LeaseEnd(row["id"], row["lease_token"], "expire", EXPIRED) for row in rows]
            )
            expired += len(ended)
            if len(rows) < BATCH or not ended:
                break
        self.mark_scanned(until)
        if expired:
            self._infra.metrics.expired.inc(expired)
            log.info("leases expired", count=expired)


class JobScheduler:
    """scheduled -> ready | parked, for jobs whose time has come; and the alarm for the next one."""

    def __init__(self, infra: Infrastructure, queues: QueueCache, signals: Signals) -> None:
        self._infra = infra
        self._queues = queues
        self._signals = signals
        self.wake: Callable[[], None] = lambda: None
        signals.on_due = self.set_alarm

    async def run_once(self) -> None:
        now = self._infra.now()
        while due := await jobs.due_jobs(self._infra.db, now, BATCH):
            lanes = by_lane(due, lambda job_id: job_id)
            moved = sum([await self._promote(lane, ids, now) for lane, ids in lanes.items()])
            if not moved:
                break  # others have them
        upcoming = await jobs.next_due(self._infra.db)
        if upcoming is not None and upcoming > now:  # what is overdue is in other hands; the regular look sees to it
            self.set_alarm(upcoming)

    async def _promote(self, lane: int, ids: Sequence[UUID], now: datetime) -> int:
        await self._queues.load([lane])
        promoted = await jobs.schedule_due(self._infra.db, lane, ids, now, self._queues.held_groups(lane))
        self._infra.metrics.promoted.inc(len(promoted))
        self._signals.moved(lane, [Move(*row) for row in promoted], since=min(ids))
        return len(promoted)

    def set_alarm(self, instant: datetime) -> None:
        """Later ones are found by the regular look."""
        seconds = (instant - self._infra.now()).total_seconds()
        if seconds < self._infra.settings.sweep_seconds:
            asyncio.get_running_loop().call_later(max(seconds, 0) + 0.001, self.wake)


class StartDeadlineEnforcer:
    """scheduled | blocked | ready | parked -> dead, for jobs that nobody has begun in time."""

    def __init__(self, infra: Infrastructure, queues: QueueCache, signals: Signals) -> None:
        self._infra = infra
        self._queues = queues
        self._signals = signals

    async def run_once(self) -> None:
        now = self._infra.now()
        while late := await jobs.past_start_deadline(self._infra.db, now, BATCH):
            lanes = by_lane(late, lambda job_id: job_id)
            gone = sum(await for_each(lanes.items(), lambda item: self._bury(*item, now)))
            if not gone:
                break  # somebody has begun them just now

    async def _bury(self, lane: int, ids: Sequence[UUID], now: datetime) -> int:
        rows = await jobs.kill_unstarted(self._infra.db, lane, ids, now)
        self._signals.left(lane, {row.group_key for row in rows})
        self._signals.finished(row.id for row in rows)
        if any(row.awaited for row in rows):
            self._signals.ended()
        if rows:
            log.info("jobs expired before they were begun", queue=await self._queues.name_of(lane), count=len(rows))
        return len(rows)


class ReadyPoller:
    """The guarantee behind wake-ups: looks for ready jobs in the queues that polls wait for."""

    def __init__(self, infra: Infrastructure, queues: QueueCache, waiting: PollerRegistry) -> None:
        self._infra = infra
        self._queues = queues
        self._waiting = waiting

    async def run_once(self) -> None:
        awaited = set(self._waiting.awaited())
        if not awaited:
            return
        if not awaited <= {queue.name for queue in self._queues.known()}:
            await self._queues.refresh()
        lanes = self._queues.lanes(awaited)
        for lane in await leases.ready_lanes(self._infra.db, lanes) if lanes else []:
            self._waiting.wake(self._queues.name(lane), [None])


class Cleaner:
    """What is too old goes: dead letters, keys, workers and old statistics. Queued work never."""

    def __init__(self, infra: Infrastructure, dead_letters: DeadLetterService) -> None:
        self._infra = infra
        self._dead_letters = dead_letters
        self._held_back = False
        infra.metrics.retention_lag.set_function(infra.clock.retention.lag)

    async def run_once(self) -> None:
        self._report_lag(self._infra.clock.retention.lag())
        now = self._infra.retention_now()
        await self._forget_letters(now - timedelta(seconds=self._infra.settings.dead_letter_seconds))
        await self._forget_keys(now)
        await workers.delete_workers(self._infra.db, now - timedelta(days=1), now - timedelta(days=7))
        await workers.delete_poll_history(self._infra.db, now - timedelta(days=1))
        await stats.delete_old_stats(self._infra.db, now - timedelta(hours=2))

    def _report_lag(self, seconds: float) -> None:
        if seconds and not self._held_back:
            log.warning(
                "retention held back: the database clock jumped ahead or disagrees with this machine's",
                seconds=round(seconds),
            )
        elif self._held_back and not seconds:
            log.info("retention follows the database clock again")
        self._held_back = bool(seconds)

    async def _forget_keys(self, now: datetime) -> None:
        while expired := await keys.expired_keys(self._infra.db, now, BATCH):
            living = await self._living({key.job_id for key in expired if key.job_id is not None})
            for lane in sorted({key.lane for key in expired}):
                own = [key for key in expired if key.lane == lane]
                kept = sorted(key.digest for key in own if key.job_id in living)
                await keys.extend_keys(self._infra.db, lane, kept, now, now + RECHECK_AFTER)
                await keys.delete_keys(self._infra.db, lane, sorted({key.digest for key in own} - set(kept)), now)

    async def _living(self, ids: set[UUID]) -> set[UUID]:
        """Jobs that wait or run keep their unique keys, however long that takes."""
        lanes = by_lane(ids, lambda job_id: job_id)
        return {job_id for lane, some in lanes.items() for job_id in await jobs.live_ids(self._infra.db, lane, some)}

    async def _forget_letters(self, before: datetime) -> None:
        while ids := await letters.expired_dead_letters(self._infra.db, before, BATCH):
            log.info("dead letters removed by age", count=await self._dead_letters.remove(ids))


class Partitions:
    """Finished jobs come and go by partition. A chore of its own: it may have to wait for a lock, and nothing else should."""

    def __init__(self, infra: Infrastructure, queues: QueueCache) -> None:
        self._infra = infra
        self._queues = queues

    async def run_once(self) -> None:
        await self.make(self._infra.now())
        await self.retire(self._infra.retention_now())

    async def make(self, now: datetime) -> None:
        """For what finishes from now on: the day on which it may go, and a few after that. And for what lies in the default one,
        which is never dropped: it would be kept for ever."""
        await self._queues.refresh()
        kept = {
            self._queues.retention(lane, now) for lane in (0, *self._queues.lanes())
        }  # no queue has lane 0: as the settings say
        first = {(until.date(), archived) for until, archived in kept}
        for day, archived in sorted(
            {(day + timedelta(days=ahead), archived) for day, archived in first for ahead in range(DAYS_AHEAD)}
        ):
            await store.make_partition(self._infra.db, day, archived=archived)
        for archived, day in await store.stray_days(self._infra.db):
            await store.make_partition(self._infra.db, day, archived=archived)

    async def retire(self, now: datetime) -> None:
        """A partition holds what may go on its day: it goes when the day is over."""
        for name in await store.partitions(self._infra.db):
            day = datetime.strptime(name[-8:], "%Y%m%d").replace(tzinfo=UTC)
            if day + timedelta(days=1) <= now and await store.retire_partition(
                self._infra.db, name, archived="_archive_" in name
            ):
                log.info("partition retired", partition=name)
