"""One look for all sweeps: whether anything is due, has run out or has ended. Mostly nothing is, and then none of them asks: a broker with
nothing to do asked 16 times a second."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from app.db.repeating_timer import RepeatingTimer
from app.db.infrastructure import Infrastructure
from app.maintenance import store
from app.maintenance.job_scheduler import JobScheduler
from app.maintenance.lease_rescuer import LeaseRescuer
from app.schedules.enqueuer import PeriodicEnqueuer

SAFETY_RUN_EVERY = 20  # rounds after which a sweep is made unasked


@dataclass(frozen=True, slots=True)
class DueCheck:
    """`nudges` by the names that `overdue` has for the sweeps."""

    infra: Infrastructure
    expiry: LeaseRescuer
    promotion: JobScheduler
    periodic_enqueuer: PeriodicEnqueuer
    wakes: Mapping[str, Callable[[], None]]

    async def run_once(self) -> None:
        now = self.infra.now()
        unasked = RepeatingTimer(
            self.infra.settings.sweep_seconds, self._nudge_all
        )  # while the look waits for a lock, or for the database
        try:
            first = await store.overdue(self.infra.db, self.expiry.after, now)
        except Exception:
            self._nudge_all()
            raise
        finally:
            unasked.stop()
        for sweep, instant in first.items():
            if instant is None or instant <= now:
                self.wakes[sweep]()
        if "expiry" not in first:
            self.expiry.mark_scanned(now)
        for sweep, set_alarm in (("promotion", self.promotion.set_alarm), ("firing", self.periodic_enqueuer.set_alarm)):
            instant = first.get(sweep)
            if instant is not None and instant > now:
                set_alarm(instant)

    def _nudge_all(self) -> None:
        for wake in self.wakes.values():
            wake()
