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
        before = time.monotonic()
        theirs: datetime = await db.value("SELECT clock_timestamp()")
        self._offset = theirs.timestamp() - (before + time.monotonic()) / 2
