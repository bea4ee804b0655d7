"""Estimates the time of the database's clock, as an offset to the monotonic clock of this process.
The offset is refreshed every second.

All times that the broker uses come from this module or from `now()` in SQL, because the broker's
own wall clock may be off by hours.
"""

import math
import time
from datetime import UTC, datetime
from functools import lru_cache

from app.db.pool import Database
from app.db.retention_clock import RetentionClock
from app.errors import DatabaseUnavailable


@lru_cache(maxsize=1000)
def datetime_from_epoch(seconds: float) -> datetime:
    """Converts seconds since 1970, exact to the microsecond: a double resolves a quarter of a
    microsecond. Cached, because the jobs of a batch share their times."""
    return datetime.fromtimestamp(seconds, UTC)


class DatabaseClock:
    """Estimates the database's time from samples.

    Two further clocks follow a jump ahead of the database's clock only after a day:

    - `retention` decides which rows are too old
    - `unique_windows` decides when unique keys with `for_seconds` end
    """

    def __init__(self) -> None:
        self.retention = RetentionClock()
        self.unique_windows = RetentionClock(wall=None)
        self._offset: float | None = None
        self._bounds = (-math.inf, math.inf)

    @property
    def is_known(self) -> bool:
        return self._offset is not None

    def now(self) -> datetime:
        """Returns the database's time. Raises DatabaseUnavailable before the first sample, because
        a wrong time from the broker's own clock could end every lease."""
        if self._offset is None:
            raise DatabaseUnavailable("the database's clock has not been read yet", "not_done")
        return datetime.fromtimestamp(time.monotonic() + self._offset, UTC)

    async def refresh(self, db: Database) -> None:
        """Takes a sample of the database's clock, and adjusts the offset.

        The server reads its clock between the request and the response. So the times of request
        and response give an upper and a lower bound of the offset. The offset is their middle.

        The bounds are the intersection of all samples so far: a slow round trip does not move the
        clock, and quick round trips make it more accurate. If the database's clock was set, the
        bounds of the new sample do not overlap the old bounds, and replace them.

        The connection is acquired before the measurement. If the measured round trip included a
        second of waiting for a busy pool, it would move a new broker's clock by half a second.
        """
        async with db.autocommit() as connection:
            before = time.monotonic()
            database_time: datetime = await connection.value("SELECT clock_timestamp()")
            after = time.monotonic()
        lowest, highest = database_time.timestamp() - after, database_time.timestamp() - before
        narrowed = (max(lowest, self._bounds[0]), min(highest, self._bounds[1]))
        self._bounds = narrowed if narrowed[0] <= narrowed[1] else (lowest, highest)
        self._offset = sum(self._bounds) / 2
        for clock in (self.retention, self.unique_windows):
            clock.observe(time.monotonic() + self._offset)
