"""Schedules that are due: their jobs are enqueued and their next run is set in one transaction, so that none fires twice or not at all.

Every process does this, without a leader: a broker that dies takes nothing with it, and nobody has to notice first.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from app.db.infrastructure import Infrastructure
from app.db.pool import Transaction, retry_after_deadlock
from app.enqueue.drafts import JobDraft
from app.enqueue.service import EnqueueService
from app.errors import DuplicateJob, QueueFull
from app.http.authorization import Access
from app.http.schema_types import UNSET, value_or
from app.jobs.reader import JobReader
from app.jobs.schemas import Job
from app.log import log
from app.queues.creator import Find
from app.schedules import store
from app.schedules.misfires import MAX_RUNS, MisfirePlan, plan
from app.schedules.recurrence import recurrence_of
from app.schedules.schemas import Misfire, Overlap
from app.schedules.store import ScheduleRow

BATCH = 100  # rows read at once; each carries its payload
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class PeriodicEnqueuer:
    def __init__(self, infra: Infrastructure, enqueuer: EnqueueService, reader: JobReader) -> None:
        self._infra = infra
        self._enqueuer = enqueuer
        self._reader = reader
        self._failed: dict[
            str, datetime | None
        ] = {}  # the run that could not be fired: told once, tried again and again
        self.wake: Callable[[], None] = lambda: None

    async def run_once(self) -> None:
        """Each due schedule once: one that has more runs to make up for than fit into a transaction gets its next turn after the others."""
        now, after, tried = self._infra.now(), (_LONG_AGO, ""), set[str]()
        while rows := await store.due_schedules(self._infra.db, now, after, BATCH):
            for row in rows:
                if row.name not in tried:
                    tried.add(row.name)
                    await self._try(row)
                after = (row.next_run_at or now, row.name)
        self._failed = {name: run for name, run in self._failed.items() if name in tried}
        upcoming = await store.next_schedule_at(self._infra.db, now)
        if upcoming is not None:
            self.set_alarm(upcoming)

    def set_alarm(self, instant: datetime) -> None:
        """Later ones are found by the regular look."""
        seconds = (instant - self._infra.now()).total_seconds()
        if seconds < self._infra.settings.sweep_seconds:
            asyncio.get_running_loop().call_later(max(seconds, 0) + 0.001, self.wake)

    async def run_now(self, name: str, access: Access) -> tuple[Job, bool]:
        """The job, and whether it is a new one. When the schedule runs next does not change."""
        while (placed := await self._placed_now(name, access)) is None:
            pass
        await self._enqueuer.announce(placed)
        return await self._reader.get(placed.job_id), placed.existing is None

    async def _placed_now(self, name: str, access: Access) -> JobDraft | None:
        """None if the schedule was changed to another queue in the meantime, which may have to be created too."""
        row = store.accessible(await store.get_schedule(self._infra.db, name), name, access)
        await self._infra.versions.ensure_fresh()
        return await self._enqueuer.with_queue(row.wanted.job, partial(self._place_now, row, access))

    @retry_after_deadlock
    async def _place_now(self, seen: ScheduleRow, access: Access, find: Find) -> JobDraft | None:
        async with self._infra.db.transaction() as transaction:
            row = store.accessible(await store.lock_schedule(transaction, seen.name), seen.name, access)
            if row.queue != seen.queue:
                return None
            placed = await self._enqueuer.place(transaction, row.wanted.job, find, schedule=row.name)
            await self._advance(transaction, row, row.next_run_at, placed)
        return placed[0]

    async def _try(self, row: ScheduleRow) -> None:
        """A schedule that cannot fire holds up no other. It stays due: tried again until it is late, and then its misfire decides."""
        try:
            more = await self._fire(row)
        except Exception as error:
            self._tell_failure(row, error)
            return
        self._failed.pop(row.name, None)
        if more:
            self.wake()

    async def _fire(self, seen: ScheduleRow) -> bool:
        """Returns whether more runs are due."""
        await self._infra.versions.ensure_fresh()
        now = self._infra.now()
        try:
            return await self._fire_together(seen, now)
        except DuplicateJob:  # a key with `reject`: this run is not wanted while another job holds it
            return await self._fire_together(seen, now, skipped=True)
        except QueueFull:  # as many as were missed may never fit at once: one by one, as room comes
            if _plan(seen, now).jobs <= 1:
                raise
            return await self._fire_together(seen, now, most=1)

    async def _fire_together(
        self, seen: ScheduleRow, now: datetime, *, skipped: bool = False, most: int = MAX_RUNS
    ) -> bool:
        return await self._enqueuer.with_queue(seen.wanted.job, partial(self._fire_into, seen.name, now, skipped, most))

    @retry_after_deadlock
    async def _fire_into(self, name: str, now: datetime, skipped: bool, most: int, find: Find) -> bool:
        async with self._infra.db.transaction() as transaction:
            row = await store.lock_due_schedule(transaction, name, now)
            if row is None:
                return False
            planned = _plan(row, now, most)
            placed = [] if skipped else await self._place(transaction, row, planned.jobs, find)
            await self._advance(transaction, row, planned.next_run_at, placed)
        await self._enqueuer.announce(*placed)
        _tell(row, planned, len(placed))
        return planned.more

    async def _place(self, transaction: Transaction, row: ScheduleRow, jobs: int, find: Find) -> list[JobDraft]:
        """One key, one job: a second run under the same key would only find the first."""
        wanted = row.wanted
        if wanted.overlap is Overlap.SKIP or wanted.job.unique is not UNSET:
            jobs = min(jobs, 1)
        if wanted.overlap is Overlap.SKIP and row.last_job_id and await store.live_job(transaction, row.last_job_id):
            jobs = 0
        return await self._enqueuer.place(transaction, wanted.job, find, schedule=row.name, count=jobs)

    async def _advance(
        self, transaction: Transaction, row: ScheduleRow, next_run_at: datetime | None, placed: list[JobDraft]
    ) -> None:
        await store.advance_schedule(
            transaction,
            row.name,
            next_run_at=next_run_at,
            last_run_at=self._infra.now() if placed else None,
            last_job_id=placed[-1].job_id if placed else None,
        )

    def _tell_failure(self, row: ScheduleRow, error: Exception) -> None:
        self._infra.metrics.chore_failures.labels("firing").inc()
        if self._failed.get(row.name) == row.next_run_at:
            return
        self._failed[row.name] = row.next_run_at
        log.warning("schedule could not fire", schedule=row.name, due=row.next_run_at, exc_info=error)


def _plan(row: ScheduleRow, now: datetime, most: int = MAX_RUNS) -> MisfirePlan:
    wanted = row.wanted
    return plan(
        recurrence_of(wanted, row.created_at), row.next_run_at or now, now, value_or(wanted.misfire, Misfire.SKIP), most
    )


def _tell(row: ScheduleRow, planned: MisfirePlan, jobs: int) -> None:
    if planned.missed:
        log.warning("schedule missed runs", schedule=row.name, since=row.next_run_at, jobs=jobs, more=planned.more)
    elif jobs < planned.jobs:
        log.info("schedule skipped runs", schedule=row.name, due=row.next_run_at, count=planned.jobs - jobs)
