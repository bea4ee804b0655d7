"""A connection in use: how a caller acquires it, and what becomes of it afterwards.

    idle   -> in use      at once
    in use -> idle        the `with` block ends, with or without an error of the server
    in use -> terminated  the caller is cancelled, or the server turns out to be read-only

A caller that finds no idle connection waits for one, or opens one.
"""

import asyncio
import time
from contextvars import ContextVar
from types import TracebackType
from typing import Self

import asyncpg

from app.db import schema_state
from app.db.connections import ConnectionPool
from app.db.primary import Connection
from app.db.watchdog import Watchdog
from app.db.write_outcome import NotReplicated, SchemaMismatch, raise_if_unavailable
from app.metrics import Metrics

# Whether the current task may use the reserved connections.
uses_reserved: ContextVar[bool] = ContextVar("uses_reserved", default=False)


class Checkouts:
    """All connections in use, and what a checkout needs to acquire one more."""

    def __init__(self, *, pool: ConnectionPool, watchdog: Watchdog, metrics: Metrics, acquire_seconds: float) -> None:
        self.pool = pool
        self.metrics = metrics
        self.in_use: dict[Connection, Checkout] = {}
        self._watchdog = watchdog
        self._acquire_seconds = acquire_seconds

    async def wait_for_connection(self, *, reserved: bool) -> Connection:
        """Fails at once if the server is silent. This check is not needed for an idle connection:
        the watchdog terminates every connection of a silent server, so an idle one was opened
        afterwards, by a server that answered."""
        try:
            self._watchdog.raise_if_silent()
            async with asyncio.timeout(self._acquire_seconds):
                return await self.pool.acquire(reserved=reserved)
        except Exception as error:
            raise_if_unavailable(self.metrics, error, "not_done")
            raise

    def count_longer_than(self, seconds: float) -> int:
        limit = time.monotonic() - seconds
        return sum(checkout.began < limit for checkout in self.in_use.values())

    def on_log_message(self, connection: object, message: asyncpg.PostgresLogMessage) -> None:
        checkout = self.in_use.get(connection)  # type: ignore[call-overload]  # the stubs allow for proxies
        if checkout is not None:
            checkout.on_log_message(message)


class Checkout:
    """Has a `connection` in its `with` block.

    If the caller is cancelled, the connection is terminated: the driver would send a cancel
    request, which also ends a commit's wait for its standby, and a commit that is only on the
    primary would become visible to everyone.
    """

    __slots__ = ("_checkouts", "_is_unreplicated", "_reserved", "began", "connection")
    connection: Connection
    began: float

    def __init__(self, checkouts: Checkouts) -> None:
        self._checkouts = checkouts
        self._reserved = uses_reserved.get()
        self._is_unreplicated = False

    async def __aenter__(self) -> Self:
        checkouts, reserved = self._checkouts, self._reserved
        connection = checkouts.pool.try_acquire(reserved=reserved)
        if connection is None:
            connection = await checkouts.wait_for_connection(reserved=reserved)
        self.began = time.monotonic()
        self.connection = connection
        checkouts.in_use[connection] = self
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                await self._fail(error)
            elif self._is_unreplicated:
                await self._fail(
                    NotReplicated("the wait for the standby was cancelled: the commit is on the primary only")
                )
        finally:
            del self._checkouts.in_use[self.connection]
            self._checkouts.pool.release(self.connection, reserved=self._reserved)

    async def _fail(self, error: BaseException) -> None:
        """Raises what the caller gets instead of the error. Returns if that is the error itself."""
        if _ends_connection(error):
            self.connection.terminate()
        if isinstance(error, schema_state.MISMATCHES):
            error = await self._explain(error)
        if isinstance(error, Exception):
            raise_if_unavailable(self._checkouts.metrics, error, "unknown")

    async def _explain(self, error: asyncpg.PostgresError) -> Exception:
        """A SchemaMismatch that names the revision needed; the error itself if the schema is not
        its cause."""
        try:
            explanation = await schema_state.explain(self.connection, error)
        except asyncio.CancelledError:
            self.connection.terminate()
            raise
        if explanation is None:
            return error
        mismatch = SchemaMismatch(explanation)
        mismatch.__cause__ = error
        return mismatch

    def on_log_message(self, message: asyncpg.PostgresLogMessage) -> None:
        """Postgres reports a commit whose wait for the standby was cancelled as successful, with a
        warning (docs/reliability/rules.md#r8). Compares the name of the server's function, because
        its texts are translated."""
        if message.server_source_function == "SyncRepWaitForLSN":
            self._is_unreplicated = True


def _ends_connection(error: BaseException) -> bool:
    if not isinstance(error, Exception):
        return True
    read_only = asyncpg.ReadOnlySQLTransactionError
    return isinstance(error, read_only) or isinstance(error.__cause__, read_only)
