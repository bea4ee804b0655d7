"""The database's clock, as seen from this process: an offset against the monotonic clock, refreshed every second.

All times in the product come from here or from `now()` in SQL; the broker's own wall clock may be off by hours.
"""

import time
from datetime import UTC, datetime

from app.db.pool import Database
from app.errors import DatabaseUnavailable


class DatabaseClock:
    def __init__(self) -> None:
        self._offset: float | None = None

    @property
    def known(self) -> bool:
        return self._offset is not None

    def now(self) -> datetime:
        """Before the database has told the time nobody knows it: our own clock could end every lease."""
        if self._offset is None:
            raise DatabaseUnavailable("the database has not told the time yet", "not_done")
        return datetime.fromtimestamp(time.monotonic() + self._offset, UTC)

    async def refresh(self, db: Database) -> None:
        """The answer was written somewhere between asking and hearing. If the offset that we have fits into that span it stays, so
        that a slow round trip does not move the clock."""
        before = time.monotonic()
        theirs: datetime = await db.value("SELECT clock_timestamp()")
        after = time.monotonic()
        earliest, latest = theirs.timestamp() - after, theirs.timestamp() - before
        if self._offset is None or not earliest <= self._offset <= latest:
            self._offset = (earliest + latest) / 2
