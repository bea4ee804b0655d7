"""Deletes rows past their retention.

The cleaner deletes dead letters, deduplication keys, workers, poll history, old statistics and
ended clock lags. It never deletes live jobs. Finished jobs are deleted by dropping partitions
(partitions.py). One broker at a time, the leader, runs the cleaner.

Ages are measured by the retention clock. If the database's clock jumps ahead, the retention clock
follows a day later, because a wrong clock must not cause deletions.
"""

from datetime import datetime, timedelta
from uuid import UUID

from app.db.infrastructure import Infrastructure
from app.db.lanes import group_by_lane
from app.dead_letters import store as dead_letter_store
from app.dead_letters.service import DeadLetterService
from app.enqueue.uniqueness import RECHECK_AFTER
from app.jobs import store as jobs
from app.locks import store as locks
from app.log import log
from app.maintenance import store
from app.periodic_service import PeriodicService
from app.stats import store as stats
from app.workers import store as workers

BATCH_SIZE = 500  # rows per statement


class Cleaner(PeriodicService):
    def __init__(self, *, infra: Infrastructure, dead_letters: DeadLetterService) -> None:
        super().__init__()
        self._infra = infra
        self._dead_letters = dead_letters
        self._is_held_back = False
        infra.metrics.retention_lag.set_function(infra.clock.retention.lag)

    async def run_once(self) -> None:
        self._log_lag(self._infra.clock.retention.lag())
        now = self._infra.retention_now()
        await self._delete_dead_letters(now - timedelta(seconds=self._infra.settings.dead_letter_seconds))
        await self._delete_keys(now)
        await workers.delete_workers(self._infra.db, now - timedelta(days=1), now - timedelta(days=7))
        await workers.delete_poll_history(self._infra.db, now - timedelta(days=1))
        await stats.delete_old_stats(self._infra.db, now - timedelta(hours=2))
        await store.delete_ended_clock_lags(self._infra.db, now)

    def _log_lag(self, seconds: float) -> None:
        """Logs when the retention clock starts to lag behind the database, and when a lag ends."""
        if seconds and not self._is_held_back:
            log.warning(
                "retention held back: the database clock jumped ahead or disagrees with this machine's clock",
                seconds=round(seconds),
            )
        elif self._is_held_back and not seconds:
            log.info("retention follows the database clock again")
        self._is_held_back = bool(seconds)

    async def _delete_keys(self, now: datetime) -> None:
        """Deletes expired deduplication keys.

        If a unique key lasts as long as its job, and the job is still live, extends the key.
        """
        while expired := await locks.expired_keys(self._infra.db, now, BATCH_SIZE):
            live = await self._live_ids({key.job_id for key in expired if key.job_id is not None})
            for lane in sorted({key.lane for key in expired}):
                keys = [key for key in expired if key.lane == lane]
                kept = sorted(key.digest for key in keys if key.job_id in live)
                await locks.extend_keys(self._infra.db, lane, kept, now, now + RECHECK_AFTER)
                await locks.delete_keys(self._infra.db, lane, sorted({key.digest for key in keys} - set(kept)), now)

    async def _live_ids(self, ids: set[UUID]) -> set[UUID]:
        """Returns the ids of the jobs that still wait or run.

        Such a job keeps its unique key, however long it waits or runs.
        """
        lanes = group_by_lane(ids, lambda job_id: job_id)
        return {
            job_id for lane, lane_ids in lanes.items() for job_id in await jobs.live_ids(self._infra.db, lane, lane_ids)
        }

    async def _delete_dead_letters(self, before: datetime) -> None:
        while ids := await dead_letter_store.dead_letters_past_retention(self._infra.db, before, BATCH_SIZE):
            log.info("dead letters removed by age", count=await self._dead_letters.delete(ids))
