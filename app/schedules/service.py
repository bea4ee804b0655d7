"""What schedules there are: put, looked at, paused, resumed, deleted, and tried out before they are made."""

from datetime import datetime
from itertools import islice

import msgspec

from app.db.infrastructure import Infrastructure
from app.db.pool import retry_after_deadlock
from app.enqueue.defaults import instant_fault
from app.enqueue.service import EnqueueService
from app.errors import Fault, ValidationFailed, refuse
from app.http.authorization import Access
from app.http.pagination import EncodedPage, PageParams, encode_page
from app.http.schema_types import UNSET, unset_if_none, value_or
from app.jobs.schemas import JobCreate
from app.schedules import store
from app.schedules.enqueuer import PeriodicEnqueuer
from app.schedules.recurrence import UPCOMING, recurrence_of, same_times, times_of
from app.schedules.schemas import Misfire, Overlap, Schedule, SchedulePreview, SchedulePut, ScheduleRuns
from app.schedules.store import ScheduleRow, accessible

# What holds for one job only, at one time: repeated, it would be wrong from the second run on.
_HOLDS_ONCE = ("run_at", "delay_seconds", "expires_at", "depends_on", "on_parent_failure")


class ScheduleService:
    def __init__(self, infra: Infrastructure, enqueuer: EnqueueService, periodic_enqueuer: PeriodicEnqueuer) -> None:
        self._infra = infra
        self._enqueuer = enqueuer
        self._periodic_enqueuer = periodic_enqueuer

    async def put(self, name: str, wanted: SchedulePut, access: Access) -> Schedule:
        access.check(value_or(wanted.job.queue, "default"), "/job/queue")
        await self._check(wanted)
        while (row := await self._put(name, wanted, access)) is None:
            pass
        return self._awaited(row)

    @retry_after_deadlock
    async def _put(self, name: str, wanted: SchedulePut, access: Access) -> ScheduleRow | None:
        """None: there was none of this name, and now there is: it may be for a queue that the caller does not reach."""
        spec = msgspec.json.encode(msgspec.structs.replace(wanted, paused=UNSET)).decode()
        now = self._infra.now()
        async with self._infra.db.transaction() as transaction:
            old = await store.lock_schedule(transaction, name)
            if old is not None:
                accessible(old, name, access)
            paused = value_or(wanted.paused, old is not None and old.paused)
            next_run_at = None if paused else _next(old, wanted, now)
            known = old is not None
            return await store.put_schedule(
                transaction, name, spec, paused=paused, next_run_at=next_run_at, now=now, known=known
            )

    async def get(self, name: str, access: Access) -> Schedule:
        return _told(accessible(await store.get_schedule(self._infra.db, name), name, access))

    async def page(self, page: PageParams, access: Access) -> EncodedPage[Schedule]:
        max_bytes = self._infra.settings.max_list_bytes
        rows, total = await store.list_schedules(
            self._infra.reads, page.after("name"), page.limit + 1, access.regex, max_bytes
        )
        return await encode_page(
            rows, _told, lambda schedule: {"name": schedule.name}, limit=page.limit, max_bytes=max_bytes, total=total
        )

    @retry_after_deadlock
    async def delete(self, name: str, access: Access) -> Schedule:
        async with self._infra.db.transaction() as transaction:
            return _told(accessible(await store.delete_schedule(transaction, name), name, access))

    async def pause(self, name: str, access: Access) -> Schedule:
        return await self._set(name, access, paused=True)

    async def resume(self, name: str, access: Access) -> Schedule:
        return await self._set(name, access, paused=False)

    def preview(self, wanted: SchedulePreview) -> ScheduleRuns:
        now = self._infra.now()
        return ScheduleRuns(runs=list(islice(times_of(wanted, now).after(now), UPCOMING)))

    async def _check(self, wanted: SchedulePut) -> None:
        """Reports the errors of the times and of the job together."""
        now = self._infra.now()
        await self._infra.versions.ensure_fresh()
        faults, more = _once_only(wanted.job), 0
        if isinstance(wanted.starts_at, datetime):
            faults.append(instant_fault(wanted.starts_at, self._infra.settings, now, "/starts_at"))
        for check in (lambda: recurrence_of(wanted, now), lambda: self._enqueuer.check(wanted.job, "/job")):
            try:
                check()
            except ValidationFailed as refusal:
                faults += refusal.faults
                more += refusal.fault_count - len(refusal.faults)
        refuse(faults, more)

    @retry_after_deadlock
    async def _set(self, name: str, access: Access, *, paused: bool) -> Schedule:
        """What a schedule missed while it was paused is not made up for: somebody wanted it not to run."""
        now = self._infra.now()
        async with self._infra.db.transaction() as transaction:
            row = accessible(await store.lock_schedule(transaction, name), name, access)
            next_run_at = None if paused else _next(row, row.wanted, now)
            row = await store.pause_or_resume(transaction, name, paused=paused, next_run_at=next_run_at, now=now)
        return self._awaited(row)

    def _awaited(self, row: ScheduleRow) -> Schedule:
        if row.next_run_at is not None:
            self._periodic_enqueuer.set_alarm(row.next_run_at)
        return _told(row)


def _next(old: ScheduleRow | None, wanted: SchedulePut, now: datetime) -> datetime | None:
    """A schedule that runs at the same times as before goes on as it was: it may be due at this moment."""
    if old is not None and not old.paused and same_times(old.wanted, wanted):
        return old.next_run_at
    return recurrence_of(wanted, old.created_at if old else now).first_after(now)


def _once_only(job: JobCreate) -> list[Fault | None]:
    sent = [name for name in _HOLDS_ONCE if getattr(job, name) is not UNSET]
    return [Fault(f"/job/{name}", "invalid", f"{name} is not allowed in a schedule's job") for name in sent]


def _told(row: ScheduleRow) -> Schedule:
    wanted = row.wanted
    timing = recurrence_of(wanted, row.created_at)
    return Schedule(
        name=row.name,
        cron=wanted.cron,
        every_seconds=wanted.every_seconds,
        timezone=value_or(wanted.timezone, "UTC"),
        job=wanted.job,
        misfire=value_or(wanted.misfire, Misfire.SKIP),
        overlap=value_or(wanted.overlap, Overlap.ALLOW),
        paused=row.paused,
        starts_at=unset_if_none(timing.starts_at),
        ends_at=unset_if_none(timing.ends_at),
        next_run_at=unset_if_none(row.next_run_at),
        last_run_at=unset_if_none(row.last_run_at),
        last_job_id=unset_if_none(row.last_job_id),
        upcoming=timing.upcoming(row.next_run_at),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
