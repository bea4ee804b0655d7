"""Samples the database's clock every second, and stores clock lags.

A clock lag says by how much the clock of retention or of unique keys is behind the database's clock
after a jump. The SQL function longshore_enqueue_v1 runs without a broker and cannot detect a jump.
It subtracts the stored lag (table `clock_lags`) from the database's time. Every broker has a row of
its own for each clock that lags, because brokers that started at different times have seen
different jumps.

    no row -> row      the database's clock jumped ahead
    row -> row         another jump changed the lag
    row -> no row      the lag ended: the database's clock jumped back, or a day has passed

Between a jump and the next sample, for about a second, the SQL function uses the time after the
jump.
"""

from datetime import timedelta
from uuid import uuid4

from app.db.infrastructure import Infrastructure
from app.db.retention_clock import JUMP_ACCEPTED_AFTER, TOLERANCE
from app.maintenance import store
from app.periodic_service import PeriodicService


class ClockSampler(PeriodicService):
    def __init__(self, *, infra: Infrastructure) -> None:
        super().__init__()
        self._infra = infra
        self._broker = uuid4()
        self._clocks = {"retention": infra.clock.retention, "unique_windows": infra.clock.unique_windows}
        self._stored = dict.fromkeys(self._clocks, 0.0)

    async def run_once(self) -> None:
        await self._infra.clock.refresh(self._infra.db)
        for name, clock in self._clocks.items():
            lag = clock.lag()
            if has_changed(self._stored[name], lag):
                await self._store(name, lag)
                self._stored[name] = lag

    async def _store(self, name: str, lag: float) -> None:
        if not lag:
            await store.delete_clock_lag(self._infra.db, name, self._broker)
            return
        now = self._infra.now()
        await store.write_clock_lag(
            self._infra.db,
            name,
            self._broker,
            seconds=lag,
            starts_at=now - timedelta(seconds=TOLERANCE),
            ends_at=now + timedelta(seconds=JUMP_ACCEPTED_AFTER),
        )


def has_changed(stored: float, lag: float) -> bool:
    """Whether the lag began, ended, or changed by TOLERANCE or more since it was last stored.

    Smaller changes are inaccuracies of the samples.
    """
    return bool(stored) != bool(lag) or abs(lag - stored) >= TOLERANCE
