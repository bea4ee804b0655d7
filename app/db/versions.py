"""What every process caches has one number that grows with each change: looked at five times a second, and announced at once."""

import time
from collections.abc import Awaitable, Callable

from app.db.pool import Database, Runs
from app.db.wakeups import Wakeups

TOPIC = 0  # of wake-ups; queue ids start at 1
LOOK_SECONDS = 0.2
FRESH_SECONDS = 0.25  # API.md: a change is in force elsewhere within this

Hear = Callable[[], Awaitable[None]]


class Versions:
    """`heard` are called, in their order, after somebody has changed something; also by the process that did it."""

    def __init__(self, db: Database, wakeups: Wakeups) -> None:
        self._db = db
        self._wakeups = wakeups
        self._number = 0
        self._looked_at = 0.0
        self.heard: list[Hear] = []

    async def run_once(self) -> None:
        asked_at = time.monotonic()
        number: int = await self._db.value("SELECT number FROM versions WHERE name = 'policies'")
        if number != self._number:
            for hear in self.heard:
                await hear()
            self._number = number
        self._looked_at = asked_at

    async def fresh(self) -> None:
        """Nobody decides by what was in force more than a moment ago: who has not looked for so long looks now."""
        if time.monotonic() - self._looked_at > FRESH_SECONDS:
            await self.run_once()

    async def grow(self, on: Runs) -> None:
        """In the transaction of the change; its row lock also makes changes wait for each other."""
        await on.rows("UPDATE versions SET number = number + 1 WHERE name = 'policies'")

    async def tell(self) -> None:
        """After the commit: in force here when this returns, elsewhere soon."""
        await self.run_once()
        self._wakeups.announce(TOPIC)
