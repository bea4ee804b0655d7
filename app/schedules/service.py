"""Creates, lists, previews, pauses, resumes and deletes schedules."""

from collections.abc import Sequence
from datetime import datetime
from itertools import islice

import msgspec

from app.db.infrastructure import Infrastructure
from app.db.pool import retry_after_deadlock
from app.enqueue.service import EnqueueService
from app.errors import Fault, ValidationFailed, raise_for_faults
from app.http.authorization import Access
from app.http.member_rules import rule_faults
from app.http.pagination import EncodedPage, PageParams, encode_page
from app.http.schema_types import UNSET, unset_if_none, value_or
from app.jobs.validation import instant_fault
from app.log import log
from app.schedules import store
from app.schedules.enqueuer import PeriodicEnqueuer
from app.schedules.recurrence import UPCOMING_RUNS, recurrence_of, same_times, times_of
from app.schedules.schemas import Misfire, Overlap, Schedule, SchedulePreview, SchedulePut, ScheduleRuns
from app.schedules.store import ScheduleRow, accessible


class ScheduleService:
    def __init__(self, *, infra: Infrastructure, enqueuer: EnqueueService, periodic_enqueuer: PeriodicEnqueuer) -> None:
        self._infra = infra
        self._enqueuer = enqueuer
        self._periodic_enqueuer = periodic_enqueuer

    async def put(self, name: str, schedule: SchedulePut, access: Access, faults: Sequence[Fault] = ()) -> Schedule:
        """Creates or replaces a schedule, and returns it.

        Raises one ValidationFailed for `faults`, which the route has found, and for the faults that
        this method finds.
        """
        access.check(value_or(schedule.job.queue, "default"), "/job/queue")
        await self._check(schedule, faults)
        while (row := await self._put(name, schedule, access)) is None:
            pass
        log.info("schedule configured", schedule=name, caller=access.caller)
        return self._with_alarm(row)

    @retry_after_deadlock
    async def _put(self, name: str, schedule: SchedulePut, access: Access) -> ScheduleRow | None:
        """Stores the schedule and returns its row.

        Returns None, and stores nothing, if another request has created the schedule in the
        meantime. `put` then tries again, because the caller may not access that schedule's queue.
        """
        spec = msgspec.json.encode(msgspec.structs.replace(schedule, paused=UNSET)).decode()
        now = self._infra.now()
        async with self._infra.db.transaction() as transaction:
            old = await store.lock_schedule(transaction, name)
            if old is not None:
                accessible(old, name, access)
            paused = value_or(schedule.paused, old is not None and old.paused)
            next_run_at = None if paused else _next_run_at(old, schedule, now)
            is_locked = old is not None
            return await store.put_schedule(
                transaction, name, spec, paused=paused, next_run_at=next_run_at, now=now, is_locked=is_locked
            )

    async def get(self, name: str, access: Access) -> Schedule:
        return _to_response(accessible(await store.get_schedule(self._infra.db, name), name, access))

    async def page(self, page: PageParams, access: Access) -> EncodedPage[Schedule]:
        max_bytes = self._infra.settings.max_list_bytes
        rows, total = await store.list_schedules(
            self._infra.read_connections, page.after("name"), page.limit + 1, access.sql_regex, max_bytes
        )
        return await encode_page(
            rows,
            _to_response,
            lambda schedule: {"name": schedule.name},
            limit=page.limit,
            max_bytes=max_bytes,
            total=total,
        )

    @retry_after_deadlock
    async def delete(self, name: str, access: Access) -> Schedule:
        async with self._infra.db.transaction() as transaction:
            row = accessible(await store.delete_schedule(transaction, name), name, access)
        log.info("schedule deleted", schedule=name, caller=access.caller)
        return _to_response(row)

    async def pause(self, name: str, access: Access) -> Schedule:
        return await self._set_paused(name, access, paused=True)

    async def resume(self, name: str, access: Access) -> Schedule:
        return await self._set_paused(name, access, paused=False)

    def preview(self, schedule: SchedulePreview) -> ScheduleRuns:
        raise_for_faults(rule_faults(schedule))
        now = self._infra.now()
        return ScheduleRuns(runs=list(islice(times_of(schedule, now).after(now), UPCOMING_RUNS)))

    async def _check(self, schedule: SchedulePut, found: Sequence[Fault]) -> None:
        """Raises ValidationFailed if the schedule is invalid.

        The error lists the faults in `found`, and those of the schedule's times and job.
        """
        now = self._infra.now()
        await self._infra.config_versions.ensure_fresh()
        faults: list[Fault | None] = [*found, *rule_faults(schedule)]
        unlisted = 0
        if isinstance(schedule.starts_at, datetime):
            faults.append(instant_fault(schedule.starts_at, self._infra.settings, now, "/starts_at"))
        try:
            self._enqueuer.check(schedule.job, "/job")
        except ValidationFailed as error:
            faults += error.faults
            unlisted = error.fault_count - len(error.faults)
        raise_for_faults(faults, unlisted)

    @retry_after_deadlock
    async def _set_paused(self, name: str, access: Access, *, paused: bool) -> Schedule:
        """Pauses or resumes a schedule.

        Runs that were due during the pause are skipped, because an operator did not want them.
        """
        now = self._infra.now()
        async with self._infra.db.transaction() as transaction:
            row = accessible(await store.lock_schedule(transaction, name), name, access)
            next_run_at = None if paused else _next_run_at(row, row.definition, now)
            row = await store.pause_or_resume(transaction, name, paused=paused, next_run_at=next_run_at, now=now)
        log.info("schedule paused" if paused else "schedule resumed", schedule=name, caller=access.caller)
        return self._with_alarm(row)

    def _with_alarm(self, row: ScheduleRow) -> Schedule:
        """Sets an alarm for the next run, and returns the response."""
        if row.next_run_at is not None:
            self._periodic_enqueuer.set_alarm(row.next_run_at)
        return _to_response(row)


def _next_run_at(old: ScheduleRow | None, schedule: SchedulePut, now: datetime) -> datetime | None:
    """Returns the next run of the schedule, or None if there is none.

    If the schedule was not paused and its times are unchanged, returns the stored next run, because
    this run may already be due.
    """
    if old is not None and not old.paused and same_times(old.definition, schedule):
        return old.next_run_at
    return recurrence_of(schedule, old.created_at if old else now).first_after(now)


def _to_response(row: ScheduleRow) -> Schedule:
    schedule = row.definition
    recurrence = recurrence_of(schedule, row.created_at)
    return Schedule(
        name=row.name,
        cron=schedule.cron,
        every_seconds=schedule.every_seconds,
        timezone=value_or(schedule.timezone, "UTC"),
        job=schedule.job,
        misfire=value_or(schedule.misfire, Misfire.SKIP),
        overlap=value_or(schedule.overlap, Overlap.ALLOW),
        paused=row.paused,
        starts_at=unset_if_none(recurrence.starts_at),
        ends_at=unset_if_none(recurrence.ends_at),
        next_run_at=unset_if_none(row.next_run_at),
        last_run_at=unset_if_none(row.last_run_at),
        last_job_id=unset_if_none(row.last_job_id),
        upcoming=recurrence.upcoming(row.next_run_at),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
