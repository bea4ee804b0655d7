"""Whether the server still answers, asked on a connection of its own: a hung or black-holed one never says that it is gone (R9).

No statement has a timeout: one that waits for a standby on a server that answers goes on waiting. When the server itself has been silent
for `silent_seconds`, all connections are terminated: what runs on them is `unknown`, what comes after is `not_done` at once, until it
answers.
"""

import asyncio
import time

import asyncpg

from app.db.failure_causes import describe
from app.db.primary import Connection, PrimaryConnector, ServerRefused
from app.log import log

PROBES = 2  # that get no answer in a row; one may be our own fault, if this process was stopped meanwhile
LATE = 1.25  # a timeout that takes so much longer than it should says more about our own loop: excused, once
LOOK_AROUND_SECONDS = 3.0


class Watchdog:
    def __init__(self, servers: PrimaryConnector, silent_seconds: float) -> None:
        self._servers = servers
        self._silent_seconds = silent_seconds
        self._probe_seconds = silent_seconds / PROBES
        self._connection: Connection | None = None
        self._misses = 0
        self._excused = False
        self._answered_at = time.monotonic()
        self.silent = False
        self._failure: Exception | None = None

    def raise_if_silent(self) -> None:
        """So that no call waits for a server that does not answer, or that refuses connections."""
        if self.silent:
            raise ServerRefused(_explain(self._failure)) from self._failure

    async def run(self) -> None:
        """Both for ever, side by side: another host that hangs must not hold up the next question."""
        try:
            await asyncio.gather(self._keep_asking(), self._keep_looking_around())
        finally:
            self._drop()

    async def _keep_asking(self) -> None:
        while True:
            began = time.monotonic()
            try:
                await self.run_once()
            except Exception:  # whatever it was: without this loop a silent server would not be noticed
                log.exception("database could not be probed")
            await asyncio.sleep(max(0, began + self._probe_seconds / 4 - time.monotonic()))

    async def _keep_looking_around(self) -> None:
        while True:
            await asyncio.sleep(LOOK_AROUND_SECONDS)
            try:
                await self._servers.probe_other_hosts()
            except Exception:  # whatever it was: without this loop an old primary would be trusted
                log.exception("other hosts could not be asked")

    async def run_once(self) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._probe_seconds):
                await self._probe()
        except (
            OSError,
            TimeoutError,
            asyncpg.PostgresError,
            asyncpg.InterfaceError,
            asyncpg.InternalClientError,
        ) as error:
            self._drop()
            if _has_spoken(error):
                self._answered()
            elif time.monotonic() - began > self._probe_seconds * LATE and not self._excused:
                self._excused = True
            else:
                self._missed(error)
        else:
            self._answered()

    async def _probe(self) -> None:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._servers.connect(
                statement_cache_size=0, server_settings={"application_name": "longshore-watchdog"}
            )
        await self._connection.execute("SELECT 1")

    def _answered(self) -> None:
        if self.silent:
            log.info("database answers again")
        self._misses, self._excused, self._answered_at, self.silent = 0, False, time.monotonic(), False

    def _missed(self, error: Exception) -> None:
        self._misses += 1
        if self._misses < PROBES or time.monotonic() - self._answered_at < self._silent_seconds:
            return
        if not self.silent:
            event = "database silent" if isinstance(error, TimeoutError) else "database unreachable"
            log.warning(f"{event}, connections terminated", detail=describe(error, self._servers.dsn))
        self.silent, self._failure = True, error
        self._servers.terminate()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None


def _explain(failure: Exception | None) -> str:
    return "the database does not answer" if failure is None or isinstance(failure, TimeoutError) else describe(failure)


def _has_spoken(error: Exception) -> bool:
    """A server that refuses (full, starting, a standby) is there: whoever asks it hears that from itself."""
    if isinstance(error, asyncpg.PostgresConnectionError):
        return False
    return isinstance(error, asyncpg.PostgresError | ServerRefused)
