"""Finds with one query the maintenance services that have work, and wakes only these services.

Usually no service has work. When each service ran its own scans, an idle broker sent 16 queries a
second.
"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime

from app.concurrency.group_scheduler import GroupScheduler
from app.db.infrastructure import Infrastructure
from app.maintenance import store
from app.maintenance.dependency_resolver import DependencyResolver
from app.maintenance.job_scheduler import JobScheduler
from app.maintenance.lease_rescuer import LeaseRescuer
from app.maintenance.start_deadline import StartDeadlineEnforcer
from app.periodic_service import PeriodicService
from app.schedules.enqueuer import PeriodicEnqueuer

SAFETY_RUN_EVERY = 20  # after so many checks, each service runs even if the checks found no work


class DueCheck(PeriodicService):
    """Wakes the services for which the statement `due_times` finds work."""

    def __init__(
        self,
        *,
        infra: Infrastructure,
        lease_rescuer: LeaseRescuer,
        job_scheduler: JobScheduler,
        periodic_enqueuer: PeriodicEnqueuer,
        start_deadlines: StartDeadlineEnforcer,
        dependency_resolver: DependencyResolver,
        group_scheduler: GroupScheduler,
    ) -> None:
        super().__init__()
        self._infra = infra
        self._lease_rescuer = lease_rescuer
        self._job_scheduler = job_scheduler
        self._periodic_enqueuer = periodic_enqueuer
        self.services: Mapping[str, PeriodicService] = {
            "lease rescuer": lease_rescuer,
            "job scheduler": job_scheduler,
            "periodic enqueuer": periodic_enqueuer,
            "start deadlines": start_deadlines,
            "dependency resolver": dependency_resolver,
            "group scheduler": group_scheduler,
        }

    async def run_once(self) -> None:
        now = self._infra.now()
        # While the query waits for a lock or for the database, the timer wakes all services.
        timer = RepeatingTimer(self._infra.settings.sweep_seconds, self._wake_all)
        try:
            due = await store.due_times(self._infra.db, self._lease_rescuer.scan_from, now)
        except Exception:
            self._wake_all()
            raise
        finally:
            timer.stop()
        for name, instant in due.items():
            if instant is None or instant <= now:
                self.services[name].wake()
        if "lease rescuer" not in due:
            self._lease_rescuer.mark_scanned(now)
        self._set_alarms(due, now)

    def _set_alarms(self, due: Mapping[str, datetime | None], now: datetime) -> None:
        """Sets the alarms of the job scheduler and of the periodic enqueuer.

        The job scheduler is woken for its next due job, the periodic enqueuer for the next run of a
        schedule, if these are in the future.
        """
        next_job, next_run = due.get("job scheduler"), due.get("periodic enqueuer")
        if next_job is not None and next_job > now:
            self._job_scheduler.set_alarm(next_job)
        if next_run is not None and next_run > now:
            self._periodic_enqueuer.set_alarm(next_run)

    def _wake_all(self) -> None:
        for service in self.services.values():
            service.wake()


class RepeatingTimer:
    """Calls `callback` every `seconds`, for the first time when `seconds` have passed."""

    def __init__(self, seconds: float, callback: Callable[[], None]) -> None:
        self._seconds = seconds
        self._callback = callback
        self._schedule()

    def _schedule(self) -> None:
        self._handle = asyncio.get_running_loop().call_later(self._seconds, self._fire)

    def _fire(self) -> None:
        self._callback()
        self._schedule()

    def stop(self) -> None:
        self._handle.cancel()
