"""What every process caches has a number that grows with each change: looked at several times a second while anybody goes by it, and
announced at once.

`policies` is what operators configure; `rests` are the groups that cool down, which change more often and are quickly read; `api_keys` is
who may call."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Literal, get_args

from app.db.notifier import Notifier
from app.db.pool import Database, Executor, uses_reserved_connections

TOPIC = 0  # of wake-ups; queue ids start at 1
CHECK_SECONDS = 0.15
IDLE_CHECK_SECONDS = 2.0
AWAKE_SECONDS = (
    5.0  # after the last call. Who comes later finds that nobody has looked, and looks himself: one round trip more
)
FRESH_SECONDS = 0.25  # API.md: a change is in force elsewhere within this

Name = Literal["policies", "rests", "api_keys"]
VersionHandler = Callable[[], Awaitable[None]]


class ConfigVersions:
    """Whoever hears of a name is called, in the order in which they joined, after somebody has changed something; also by who did it."""

    def __init__(self, db: Database, wakeups: Notifier) -> None:
        self._db = db
        self._wakeups = wakeups
        self._numbers: dict[str, int] = {}
        self._heard: dict[str, list[VersionHandler]] = {name: [] for name in get_args(Name)}
        self._looked_at = self._asked_at = 0.0
        self._looking = asyncio.Lock()
        self._shared: asyncio.Future[None] | None = None

    def hear(self, name: Name, hear: VersionHandler) -> None:
        self._heard[name].append(hear)

    async def run_once(self) -> None:
        async with self._looking:
            await self._look()

    async def keep_fresh(self) -> None:
        """The chore: so that those who call one after the other need not look themselves."""
        now = time.monotonic()
        if now - self._asked_at <= AWAKE_SECONDS or now - self._looked_at >= IDLE_CHECK_SECONDS:
            await self.run_once()

    def invalidate(self) -> None:
        """Somebody has changed something: the next look is due."""
        self._looked_at = 0.0

    def is_fresh(self) -> bool:
        """Asked by who goes by it."""
        self._asked_at = now = time.monotonic()
        return now - self._looked_at <= FRESH_SECONDS

    async def ensure_fresh(self) -> None:
        """Nobody decides by what was in force more than a moment ago: who has not looked for so long looks now, and others with him. Who
        found a slow look under way waits for another one."""
        for _ in range(2):
            if self.is_fresh():
                return
            if self._shared is None or self._shared.done():
                self._shared = asyncio.ensure_future(self.run_once())
                self._shared.add_done_callback(_heard_out)
            await asyncio.shield(self._shared)

    @uses_reserved_connections
    async def _look(self) -> None:
        """Ahead of the rest, as who settles a job is asked for a key that is in force."""
        asked_at = time.monotonic()
        for row in await self._db.rows("SELECT name, number FROM versions ORDER BY name"):
            name, number = row["name"], row["number"]
            if number != self._numbers.get(name):
                for hear in self._heard.get(name, ()):
                    await hear()
                self._numbers[name] = number
        self._looked_at = asked_at

    async def bump(self, on: Executor, name: Name) -> None:
        """In the transaction of the change; its row lock also makes changes wait for each other."""
        await on.rows("UPDATE versions SET number = number + 1 WHERE name = $1", name)

    async def tell(self) -> None:
        """After the commit: in force here when this returns, elsewhere soon."""
        await self.run_once()
        self._wakeups.announce(TOPIC)


def _heard_out(look: "asyncio.Future[None]") -> None:
    """Those who waited for it may have gone."""
    if not look.cancelled():
        look.exception()
