"""Keeps the cached configuration of every process fresh, by version numbers in the database.

A change of the configuration increments one of the numbers. While requests use the configuration,
every process reads the numbers several times a second, and reloads the parts whose number has
changed. After a change, a NOTIFY makes the other processes read the numbers at once.

    policies   queues and job types, as operators configure them
    cooldowns  groups that are cooling down; they change more often and are quick to read
    api_keys   the API keys

A check reads the numbers and reloads. The configuration of a process is fresh or stale:

    fresh   -> stale   the last check is older than FRESH_SECONDS, or ConfigNotified was published
    stale   -> fresh   a check has run, periodically or in `ensure_fresh`
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Literal, get_args

from app.db.notifier import Notifier
from app.db.pool import Database, Executor, uses_reserved_connections
from app.events import ConfigNotified, EventBus
from app.periodic_service import PeriodicService

CHECK_SECONDS = 0.15
IDLE_CHECK_SECONDS = 2.0
# After the last use of the configuration, checks run every CHECK_SECONDS for this long. A later
# request may find the configuration stale, and then runs a check itself: one more round trip.
AWAKE_SECONDS = 5.0
# The API promises that a change is in effect in every process within this time.
FRESH_SECONDS = 0.25

Name = Literal["policies", "cooldowns", "api_keys"]
VersionHandler = Callable[[], Awaitable[None]]


class ConfigVersions(PeriodicService):
    """Checks the version numbers. If a number has changed since the last check, calls the handlers
    of that number in the order of their subscriptions. The process that made the change calls its
    own handlers, too."""

    def __init__(self, *, db: Database, notifier: Notifier, events: EventBus) -> None:
        super().__init__()
        self._db = db
        self._notifier = notifier
        self._numbers: dict[str, int] = {}
        self._handlers: dict[str, list[VersionHandler]] = {name: [] for name in get_args(Name)}
        self._checked_at = self._used_at = 0.0
        self._check_lock = asyncio.Lock()
        self._shared_check: asyncio.Future[None] | None = None
        events.subscribe(ConfigNotified, self._on_notified)

    def subscribe(self, name: Name, handler: VersionHandler) -> None:
        self._handlers[name].append(handler)

    async def run_once(self) -> None:
        await self.check_now()

    async def wait(self, seconds: float) -> None:
        """Waits for the next check: `seconds` if the configuration was used in the last
        AWAKE_SECONDS, so that the next use finds it fresh. Otherwise IDLE_CHECK_SECONDS."""
        await super().wait(seconds if self._is_in_use else IDLE_CHECK_SECONDS)

    async def check_now(self) -> None:
        """Runs a check. If another check is running, first waits for its end."""
        async with self._check_lock:
            await self._check()

    def _on_notified(self, _event: ConfigNotified) -> None:
        self._checked_at = 0.0
        self.wake()

    @property
    def is_fresh(self) -> bool:
        """Whether the configuration is at most FRESH_SECONDS old."""
        return time.monotonic() - self._checked_at <= FRESH_SECONDS

    @property
    def _is_in_use(self) -> bool:
        return time.monotonic() - self._used_at <= AWAKE_SECONDS

    def record_use(self) -> None:
        """Records a use of the configuration. Checks then stay frequent for AWAKE_SECONDS."""
        if not self._is_in_use:
            self.wake()
        self._used_at = time.monotonic()

    async def ensure_fresh(self) -> None:
        """Guarantees that the configuration is at most 250 ms old, or was read during this call.

        If the configuration is older, runs a check; concurrent calls share one check. After a
        slow check, runs another check, because the age counts from the beginning of a check.
        """
        self.record_use()
        for _ in range(2):
            if self.is_fresh:
                return
            if self._shared_check is None or self._shared_check.done():
                self._shared_check = asyncio.ensure_future(self.check_now())
                self._shared_check.add_done_callback(_retrieve_exception)
            await asyncio.shield(self._shared_check)

    @uses_reserved_connections
    async def _check(self) -> None:
        """Reads the numbers, and calls the handlers of each number that has changed. May use the
        reserved connections, because a worker that settles a job needs a valid API key."""
        began = time.monotonic()
        for row in await self._db.rows("SELECT name, number FROM config_versions ORDER BY name"):
            name, number = row["name"], row["number"]
            if number != self._numbers.get(name):
                for handler in self._handlers.get(name, ()):
                    await handler()
                self._numbers[name] = number
        self._checked_at = began

    async def bump(self, db: Executor, name: Name) -> None:
        """Increments a version number. Call this in the transaction that changes the configuration.
        The lock on the row of the number serializes such transactions."""
        await db.rows("UPDATE config_versions SET number = number + 1 WHERE name = $1", name)

    async def announce(self) -> None:
        """Puts a committed change into effect: in this process before the call returns, in the
        other processes within FRESH_SECONDS. Call this after the commit."""
        await self.check_now()
        self._notifier.announce_config()


def _retrieve_exception(check: "asyncio.Future[None]") -> None:
    """Retrieves the exception of a check. Otherwise asyncio would log it as never retrieved if
    every call that shared the check was cancelled."""
    if not check.cancelled():
        check.exception()
