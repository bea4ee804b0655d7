"""One query that tells which maintenance services have work to do; the others are not run.

Mostly none has. Without this query each service scanned on its own: an idle broker sent 16 queries
a second.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from app.db.infrastructure import Infrastructure
from app.db.repeating_timer import RepeatingTimer
from app.maintenance import store
from app.maintenance.job_scheduler import JobScheduler
from app.maintenance.lease_rescuer import LeaseRescuer
from app.schedules.enqueuer import PeriodicEnqueuer

SAFETY_RUN_EVERY = 20  # checks; after as many each service runs anyway


@dataclass(frozen=True, slots=True)
class DueCheck:
    """`wakes` wakes a service, by the name that the statement `overdue` has for it."""

    infra: Infrastructure
    lease_rescuer: LeaseRescuer
    job_scheduler: JobScheduler
    periodic_enqueuer: PeriodicEnqueuer
    wakes: Mapping[str, Callable[[], None]]

    async def run_once(self) -> None:
        now = self.infra.now()
        # Runs the services unprompted while the query waits for a lock, or for the database.
        timer = RepeatingTimer(self.infra.settings.sweep_seconds, self._wake_all)
        try:
            due = await store.overdue(self.infra.db, self.lease_rescuer.scan_from, now)
        except Exception:
            self._wake_all()
            raise
        finally:
            timer.stop()
        for name, instant in due.items():
            if instant is None or instant <= now:
                self.wakes[name]()
        if "expiry" not in due:
            self.lease_rescuer.mark_scanned(now)
        alarms = (("promotion", self.job_scheduler.set_alarm), ("firing", self.periodic_enqueuer.set_alarm))
        for name, set_alarm in alarms:
            instant = due.get(name)
            if instant is not None and instant > now:
                set_alarm(instant)

    def _wake_all(self) -> None:
        for wake in self.wakes.values():
            wake()
