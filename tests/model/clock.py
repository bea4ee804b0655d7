"""A clock that stands still until a test moves it: what a model foretells it foretells to the microsecond."""

from datetime import UTC, datetime, timedelta

from app.db.clock import DatabaseClock

TICK = timedelta(milliseconds=1)


class VirtualClock(DatabaseClock):
    """Never goes back. Statements that say `now()` see the real time, which is earlier: only the age of what has finished hangs on it."""

    def __init__(self) -> None:
        super().__init__()
        self._now = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=1)

    def now(self) -> datetime:
        return self._now

    def advance(self, by: timedelta) -> None:
        self._now += by
