"""Creates daily partitions of finished jobs ahead of time, and retires them when their day is over.

    completed | cancelled -> deleted    the partition is dropped
    completed | cancelled -> archived   the partition is detached (`retention.mode: detach`)

A partition contains the jobs whose retention ends on its day. One broker at a time, the leader,
runs this service. It is not part of the cleaner, because it may have to wait for a table lock, and
no other service should wait with it.
"""

from datetime import UTC, datetime, timedelta

from app.db.infrastructure import Infrastructure
from app.log import log
from app.maintenance import store
from app.periodic_service import PeriodicService
from app.queues.cache import QueueCache
from app.slices import in_slices

DAYS_AHEAD = 3
_SETTINGS_LANE = 0  # belongs to no queue, so its retention is that of the settings


class Partitions(PeriodicService):
    def __init__(self, *, infra: Infrastructure, queues: QueueCache) -> None:
        super().__init__()
        self._infra = infra
        self._queues = queues

    async def run_once(self) -> None:
        await self._create(self._infra.now())
        await self._retire(self._infra.retention_now())

    async def _create(self, now: datetime) -> None:
        """Creates the partitions for the jobs that finish today or on the next days.

        The retention of each queue decides which partitions these are. Also creates the partitions
        that are missing for jobs in the default partition, because the default partition is never
        dropped, and would keep these jobs forever.
        """
        await self._queues.load_all()
        lanes = in_slices([_SETTINGS_LANE, *await self._queues.all_lanes()])
        retentions = {self._queues.retention(lane, now) async for lane in lanes}
        first_days = {(until.date(), archived) for until, archived in retentions}
        for day, archived in sorted(
            {(day + timedelta(days=ahead), archived) for day, archived in first_days for ahead in range(DAYS_AHEAD)}
        ):
            await store.create_partition(self._infra.db, day, archived=archived)
        for archived, day in await store.misplaced_days(self._infra.db):
            await store.create_partition(self._infra.db, day, archived=archived)

    async def _retire(self, now: datetime) -> None:
        """Drops or detaches the partitions whose day is over."""
        for name in await store.partitions(self._infra.db):
            day = datetime.strptime(name[-8:], "%Y%m%d").replace(tzinfo=UTC)
            if day + timedelta(days=1) <= now and await store.retire_partition(
                self._infra.db, name, archived="_archive_" in name
            ):
                log.info("partition retired", partition=name)
