"""The database's clock, as seen from this process: an offset against the monotonic clock, refreshed every second.

All times in the product come from here or from `now()` in SQL; the broker's own wall clock may be off by hours.
"""

import math
import time
from datetime import UTC, datetime
from functools import lru_cache

from app.db.pool import Database
from app.db.retention_clock import RetentionClock
from app.errors import DatabaseUnavailable


@lru_cache(maxsize=1000)
def instant(seconds: float) -> datetime:
    """Since 1970; to the microsecond, as a double has a quarter of that. Remembered, as the jobs of a batch have them in common."""
    return datetime.fromtimestamp(seconds, UTC)


class DatabaseClock:
    """The database's time, estimated from samples. Retention goes by `retention`, unique keys end by `unique_windows`: neither follows a
    jump ahead at once."""

    def __init__(self) -> None:
        self.retention = RetentionClock()
        self.unique_windows = RetentionClock(wall=None)
        self._offset: float | None = None
        self._span = (-math.inf, math.inf)

    @property
    def known(self) -> bool:
        return self._offset is not None

    def now(self) -> datetime:
        """Before the database has told the time nobody knows it: our own clock could end every lease."""
        if self._offset is None:
            raise DatabaseUnavailable("the database has not told the time yet", "not_done")
        return datetime.fromtimestamp(time.monotonic() + self._offset, UTC)

    async def refresh(self, db: Database) -> None:
        """The answer was written somewhere between asking and hearing: a span in which the offset lies. What fits into all spans so far is
        kept, so that a slow round trip does not move the clock and quick ones make it better; a clock that was set fits into none.

        The connection is acquired first: a second in which a busy pool had none would move a new broker's clock by half a second."""
        async with db.held() as connection:
            before = time.monotonic()
            theirs: datetime = await connection.value("SELECT clock_timestamp()")
            after = time.monotonic()
        earliest, latest = theirs.timestamp() - after, theirs.timestamp() - before
        narrowed = (max(earliest, self._span[0]), min(latest, self._span[1]))
        self._span = narrowed if narrowed[0] <= narrowed[1] else (earliest, latest)
        self._offset = sum(self._span) / 2
        for clock in (self.retention, self.unique_windows):
            clock.observe(time.monotonic() + self._offset)
