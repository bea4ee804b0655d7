"""Probes the server on a connection of its own: a hung or black-holed server never reports that it
is gone.

    answering -> silent     two probes in a row got no reply, for `silent_seconds`: all connections
                            are terminated, and the outcome of their statements is `unknown`
    silent    -> silent     calls fail with `not_done` at once
    silent    -> answering  a probe got a reply, even an error

No statement has a timeout: one that waits for a standby, on a server that answers probes, keeps
waiting. See docs/reliability/rules.md#r9.
"""

import asyncio
import time

import asyncpg

from app.db.failure_causes import describe
from app.db.primary import UNREACHABLE, Connection, PrimaryConnector, UnusableServer
from app.log import log

# Probes without a reply, in a row, of a silent server. A single one proves nothing: this process
# may have been stopped in the meantime.
MAX_UNANSWERED = 2
# A timeout that fires this many times later than it should was delayed by this process; it is
# ignored once.
LATE_FACTOR = 1.25
OTHER_HOSTS_SECONDS = 3.0


class Watchdog:
    """Probes the server on which the pool of one process runs its statements, and terminates all
    connections if it is silent."""

    def __init__(self, connector: PrimaryConnector, silent_seconds: float) -> None:
        self._connector = connector
        self._silent_seconds = silent_seconds
        self._probe_seconds = silent_seconds / MAX_UNANSWERED
        self._connection: Connection | None = None
        self._unanswered = 0
        self._has_ignored_late_timeout = False
        self._answered_at = time.monotonic()
        self._is_silent = False
        self._failure: Exception | None = None

    def raise_if_silent(self) -> None:
        """Raises UnusableServer if the server is silent, so that no call waits for it."""
        if self._is_silent:
            raise UnusableServer(_explain(self._failure)) from self._failure

    async def run(self) -> None:
        """Probes the server and, concurrently, the other hosts of the DSN, forever. Another host
        that hangs must not delay the next probe of the server."""
        try:
            await asyncio.gather(self._probe_server(), self._probe_other_hosts())
        finally:
            self._disconnect()

    async def _probe_server(self) -> None:
        while True:
            began = time.monotonic()
            try:
                await self.run_once()
            except Exception:  # any error: without this loop a silent server would go unnoticed
                log.exception("probing the database failed")
            await asyncio.sleep(max(0, began + self._probe_seconds / 4 - time.monotonic()))

    async def _probe_other_hosts(self) -> None:
        while True:
            await asyncio.sleep(OTHER_HOSTS_SECONDS)
            try:
                await self._connector.probe_other_hosts()
            except Exception:  # any error: without this loop a superseded primary would be trusted
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
        if self._unanswered < MAX_UNANSWERED or time.monotonic() - self._answered_at < self._silent_seconds:
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


def _explain(failure: Exception | None) -> str:
    return "the database does not answer" if failure is None or isinstance(failure, TimeoutError) else describe(failure)


def _is_reply(error: Exception) -> bool:
    """Whether the server itself sent the error. Then it is not silent, even if it rejects
    connections (it has too many, or is starting) or is unusable (a standby): calls still try to
    connect, and report its error."""
    if isinstance(error, asyncpg.PostgresConnectionError):
        return False
    return isinstance(error, asyncpg.PostgresError | UnusableServer)
