"""A clock that stands still until a test moves it.

So the model predicts times to the microsecond.
"""

from datetime import UTC, datetime, timedelta

from app.db.clock import DatabaseClock

TICK = timedelta(milliseconds=1)


class VirtualClock(DatabaseClock):
    """A clock that never goes back.

    Statements with `now()` see the real time, which is earlier. Only the age of finished jobs
    depends on it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=1)

    def now(self) -> datetime:
        return self._now

    def advance(self, duration: timedelta) -> None:
        self._now += duration
