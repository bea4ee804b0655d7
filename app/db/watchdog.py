"""Detects a silent database server by probes on a connection of its own. A server that hangs, or
whose network drops every packet, never reports that it is gone.

    answering -> silent     no reply to two probes in a row, and none for `silent_seconds`: all
                            connections are terminated, and the outcome of running writes is
                            `unknown`
    silent    -> silent     calls fail with `not_done` at once
    silent    -> answering  a probe got a reply, even an error

Statements have no timeout: while the server answers probes, a statement may wait for a standby as
long as it takes. See docs/reliability/rules.md#r9.
"""

import asyncio
import time

import asyncpg

from app.db.failure_causes import describe
from app.db.primary import UNREACHABLE, Connection, PrimaryConnector, UnusableServer
from app.log import log

# After this many probes in a row without a reply, the server is silent. A single unanswered probe
# proves nothing: this process may have been suspended in the meantime.
SILENT_AFTER_PROBES = 2
# If a probe lasts longer than its timeout times this factor, the delay was in this process, which
# may have been suspended. One such timeout is ignored.
LATE_FACTOR = 1.25
OTHER_HOSTS_SECONDS = 3.0


class Watchdog:
    """Probes the database server of one process, and terminates all connections to it if it is
    silent."""

    def __init__(self, connector: PrimaryConnector, silent_seconds: float) -> None:
        self._connector = connector
        self._silent_seconds = silent_seconds
        self._probe_seconds = silent_seconds / SILENT_AFTER_PROBES
        self._connection: Connection | None = None
        self._unanswered = 0
        self._has_ignored_late_timeout = False
        self._answered_at = time.monotonic()
        self._is_silent = False
        self._failure: Exception | None = None

    def raise_if_silent(self) -> None:
        """Raises UnusableServer if the server is silent, so that no call waits for it."""
        if self._is_silent:
            raise UnusableServer(_silence_detail(self._failure)) from self._failure

    async def run(self) -> None:
        """Probes the server in use and, in a concurrent loop, the other hosts of the DSN. So a hung
        host does not delay the next probe of the server in use."""
        try:
            await asyncio.gather(self._probe_server(), self._probe_other_hosts())
        finally:
            self._disconnect()

    async def _probe_server(self) -> None:
        while True:
            began = time.monotonic()
            try:
                await self.run_once()
            except Exception:  # catches all errors: without this loop a silent server would go unnoticed
                log.exception("probing the database failed")
            await asyncio.sleep(max(0, began + self._probe_seconds / 4 - time.monotonic()))

    async def _probe_other_hosts(self) -> None:
        while True:
            await asyncio.sleep(OTHER_HOSTS_SECONDS)
            try:
                await self._connector.probe_other_hosts()
            except Exception:  # catches all errors: without this loop a superseded primary would be trusted
                log.exception("probing the other database hosts failed")

    async def run_once(self) -> None:
        """Probes the server once, and records whether it replied."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._probe_seconds):
                await self._probe()
        except UNREACHABLE as error:
            self._disconnect()
            is_late = time.monotonic() - began > self._probe_seconds * LATE_FACTOR
            if _is_reply(error):
                self._on_reply()
            elif is_late and not self._has_ignored_late_timeout:
                self._has_ignored_late_timeout = True
            else:
                self._on_unanswered(error)
        else:
            self._on_reply()

    async def _probe(self) -> None:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._connector.connect(
                statement_cache_size=0, server_settings={"application_name": "longshore-watchdog"}
            )
        await self._connection.execute("SELECT 1")

    def _on_reply(self) -> None:
        if self._is_silent:
            log.info("database answers again")
        self._unanswered, self._has_ignored_late_timeout = 0, False
        self._answered_at, self._is_silent = time.monotonic(), False

    def _on_unanswered(self, error: Exception) -> None:
        self._unanswered += 1
        if self._unanswered < SILENT_AFTER_PROBES or time.monotonic() - self._answered_at < self._silent_seconds:
            return
        if not self._is_silent:
            self._log_silent(error)
        self._is_silent, self._failure = True, error
        self._connector.terminate()

    def _log_silent(self, error: Exception) -> None:
        detail = describe(error, self._connector.dsn)
        if isinstance(error, TimeoutError):
            log.warning("database silent, connections terminated", detail=detail)
        else:
            log.warning("database unreachable, connections terminated", detail=detail)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None


def _silence_detail(failure: Exception | None) -> str:
    return "the database does not answer" if failure is None or isinstance(failure, TimeoutError) else describe(failure)


def _is_reply(error: Exception) -> bool:
    """Whether the error shows that the server has replied. Such a server is not silent, even if it
    rejects connections (too many are open, or it is starting) or is unusable (a standby). Calls
    still try to connect, and report the server's error."""
    if isinstance(error, asyncpg.PostgresConnectionError):
        return False
    return isinstance(error, asyncpg.PostgresError | UnusableServer)
