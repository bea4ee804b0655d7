"""The database's clock, as seen from this process: an offset against the monotonic clock, refreshed every second.

All times in the product come from here or from `now()` in SQL; the broker's own wall clock may be off by hours.
"""

import time
from datetime import UTC, datetime

from app.db.pool import Database


class DatabaseClock:
    def __init__(self) -> None:
        # Before the first refresh the wall clock has to do: nothing is written with it, as writing needs the database too.
        self._offset = time.time() - time.monotonic()

    def now(self) -> datetime:
        return datetime.fromtimestamp(time.monotonic() + self._offset, UTC)

    async def refresh(self, db: Database) -> None:
        """The answer was written somewhere between asking and hearing. If the offset that we have fits into that span it stays, so
        that a slow round trip does not move the clock."""
        before = time.monotonic()
        theirs: datetime = await db.value("SELECT clock_timestamp()")
        after = time.monotonic()
        earliest, latest = theirs.timestamp() - after, theirs.timestamp() - before
        if not earliest <= self._offset <= latest:
            self._offset = (earliest + latest) / 2
