"""Enqueues the jobs of due schedules.

One transaction enqueues the jobs and sets the next run, so no run fires twice or is lost.

    due -> enqueued   the jobs are inserted, `next_run_at` advances
    due -> skipped    no job is inserted (overlap, duplicate or misfire), `next_run_at` advances
    due -> due        the run failed: the service tries again until the run is 60 s late, then the
                      misfire policy decides

Every broker runs this service, without a leader. If a broker dies, the others continue without
having to detect its death.
"""

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
from app.periodic_service import PeriodicService
from app.queues.creator import FindQueue
from app.schedules import store
from app.schedules.misfires import MAX_RUNS, MisfirePlan, plan_runs
from app.schedules.recurrence import recurrence_of
from app.schedules.schemas import Misfire, Overlap
from app.schedules.store import ScheduleRow

BATCH_SIZE = 100  # schedules per query; no more, because each row includes the payload of the job
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


class PeriodicEnqueuer(PeriodicService):
    def __init__(self, *, infra: Infrastructure, enqueuer: EnqueueService, reader: JobReader) -> None:
        super().__init__()
        self._infra = infra
        self._enqueuer = enqueuer
        self._reader = reader
        # The last failed run of each schedule. The failure of a run is logged once, not for each try.
        self._failed: dict[str, datetime | None] = {}

    async def run_once(self) -> None:
        """Fires each due schedule once.

        If more runs of a schedule are due than fit into one transaction, the other runs fire after
        all other due schedules have fired.
        """
        now, after, tried = self._infra.now(), (_BEGINNING, ""), set[str]()
        while rows := await store.due_schedules(self._infra.db, now, after, BATCH_SIZE):
            for row in rows:
                if row.name not in tried:
                    tried.add(row.name)
                    await self._try_fire(row)
                after = (row.next_run_at or now, row.name)
        self._failed = {name: run for name, run in self._failed.items() if name in tried}
        upcoming = await store.next_schedule_at(self._infra.db, now)
        if upcoming is not None:
            self.set_alarm(upcoming)

    def set_alarm(self, instant: datetime) -> None:
        """Wakes the service at `instant`.

        Does nothing if `instant` is further away than the scan interval, because the next scan
        reads `next_run_at` again.
        """
        seconds = (instant - self._infra.now()).total_seconds()
        if seconds < self._infra.settings.sweep_seconds:
            self.wake_after(max(seconds, 0) + 0.001)

    async def run_now(self, name: str, access: Access) -> tuple[Job, bool]:
        """Enqueues the job of a schedule now.

        Returns the job, and True if the job is new or False if it is a duplicate. Does not change
        the next scheduled run.
        """
        while (draft := await self._try_run_now(name, access)) is None:
            pass
        await self._enqueuer.publish_committed([draft])
        log.info("schedule run on request", schedule=name, job_id=str(draft.job_id), caller=access.caller)
        return await self._reader.get(draft.job_id), draft.existing is None

    async def _try_run_now(self, name: str, access: Access) -> JobDraft | None:
        """Enqueues the job of the schedule as it is stored now.

        Returns None if the schedule was changed to another queue in the meantime. `run_now` then
        tries again, because the other queue may have to be created, too.
        """
        row = store.accessible(await store.get_schedule(self._infra.db, name), name, access)
        await self._infra.config_versions.ensure_fresh()
        return await self._enqueuer.with_queue(row.definition.job, partial(self._enqueue_now, row, access))

    @retry_after_deadlock
    async def _enqueue_now(self, candidate: ScheduleRow, access: Access, find: FindQueue) -> JobDraft | None:
        async with self._infra.db.transaction() as transaction:
            row = store.accessible(await store.lock_schedule(transaction, candidate.name), candidate.name, access)
            if row.queue != candidate.queue:
                return None
            drafts = await self._enqueuer.enqueue_for_schedule(transaction, row.definition.job, find, schedule=row.name)
            await self._advance(transaction, row, row.next_run_at, drafts)
        return drafts[0]

    async def _try_fire(self, row: ScheduleRow) -> None:
        """Fires one schedule. Records a failure and does not raise, so that other schedules fire.

        A run that fails stays due, and the service tries again until the run is 60 s late. Then the
        misfire policy decides.
        """
        try:
            more = await self._fire(row)
        except Exception as error:
            self._record_failure(row, error)
            return
        self._failed.pop(row.name, None)
        if more:
            self.wake()

    async def _fire(self, candidate: ScheduleRow) -> bool:
        """Fires a schedule's due runs under its misfire policy.

        Enqueues at most MAX_RUNS jobs. Returns whether more runs are due.
        """
        await self._infra.config_versions.ensure_fresh()
        now = self._infra.now()
        try:
            return await self._fire_runs(candidate, now)
        except DuplicateJob:
            # The unique key of the job has `on_duplicate: reject`, and another job has the key.
            # Skips the due runs.
            return await self._fire_runs(candidate, now, skip=True)
        except QueueFull:
            # The queue may never have space for all missed runs at once. Enqueues them one by one.
            if _plan(candidate, now).jobs <= 1:
                raise
            return await self._fire_runs(candidate, now, limit=1)

    async def _fire_runs(
        self, candidate: ScheduleRow, now: datetime, *, skip: bool = False, limit: int = MAX_RUNS
    ) -> bool:
        return await self._enqueuer.with_queue(
            candidate.definition.job, partial(self._fire_in_transaction, candidate.name, now, skip, limit)
        )

    @retry_after_deadlock
    async def _fire_in_transaction(self, name: str, now: datetime, skip: bool, limit: int, find: FindQueue) -> bool:
        async with self._infra.db.transaction() as transaction:
            row = await store.lock_due_schedule(transaction, name, now)
            if row is None:
                return False
            plan = _plan(row, now, limit)
            drafts = [] if skip else await self._enqueue_runs(transaction, row, plan.jobs, find)
            await self._advance(transaction, row, plan.next_run_at, drafts)
        await self._enqueuer.publish_committed(drafts)
        _log_runs(row, plan, len(drafts))
        return plan.more

    async def _enqueue_runs(
        self, transaction: Transaction, row: ScheduleRow, jobs: int, find: FindQueue
    ) -> list[JobDraft]:
        """Enqueues up to `jobs` jobs of a schedule.

        With `overlap: skip`, enqueues at most one job, and none while the last job waits or runs.
        With a unique key, enqueues at most one job, because a second job would be a duplicate of
        the first.
        """
        definition = row.definition
        if definition.overlap is Overlap.SKIP or definition.job.unique is not UNSET:
            jobs = min(jobs, 1)
        if (
            definition.overlap is Overlap.SKIP
            and row.last_job_id
            and await store.is_job_live(transaction, row.last_job_id)
        ):
            jobs = 0
        return await self._enqueuer.enqueue_for_schedule(
            transaction, definition.job, find, schedule=row.name, count=jobs
        )

    async def _advance(
        self, transaction: Transaction, row: ScheduleRow, next_run_at: datetime | None, drafts: list[JobDraft]
    ) -> None:
        await store.advance_schedule(
            transaction,
            row.name,
            next_run_at=next_run_at,
            last_run_at=self._infra.now() if drafts else None,
            last_job_id=drafts[-1].job_id if drafts else None,
        )

    def _record_failure(self, row: ScheduleRow, error: Exception) -> None:
        self._infra.metrics.service_failures.labels("periodic enqueuer").inc()
        if self._failed.get(row.name) == row.next_run_at:
            return
        self._failed[row.name] = row.next_run_at
        log.warning("schedule could not fire", schedule=row.name, due=row.next_run_at, exc_info=error)


def _plan(row: ScheduleRow, now: datetime, limit: int = MAX_RUNS) -> MisfirePlan:
    definition = row.definition
    return plan_runs(
        recurrence_of(definition, row.created_at),
        row.next_run_at or now,
        now,
        value_or(definition.misfire, Misfire.SKIP),
        limit,
    )


def _log_runs(row: ScheduleRow, plan: MisfirePlan, jobs: int) -> None:
    if plan.missed:
        log.warning("schedule missed runs", schedule=row.name, since=row.next_run_at, jobs=jobs, more=plan.more)
    elif jobs < plan.jobs:
        log.info("schedule skipped runs", schedule=row.name, due=row.next_run_at, count=plan.jobs - jobs)
