"""The connection pool of one process, and the checkouts by which tasks use its connections.

    idle   -> in use      a task acquires the connection
    in use -> idle        the `with` block ends, with or without an error of the server
    in use -> terminated  the task is cancelled, or the server turns out to be read-only
    any    -> terminated  the server is silent, superseded or no longer durable

A task that finds no idle connection opens a new one, or waits for a release. Acquiring an idle
connection and releasing it need no task, no timer and no round trip. asyncpg's own pool takes
100 µs for both.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Self

import asyncpg

from app.db import schema_state
from app.db.primary import Connection
from app.db.watchdog import Watchdog
from app.db.write_outcome import NotReplicated, SchemaMismatch, raise_if_unavailable
from app.errors import Outcome
from app.metrics import Metrics

# Whether the current task may use the reserved connections.
may_use_reserved: ContextVar[bool] = ContextVar("may_use_reserved", default=False)


class Semaphore:
    """Admits at most `limit` holders at a time, first come, first served.

    A release passes the slot on to the first waiter. So `free` is 0 while a task waits, and
    comparing `free` with 0 is enough to know whether `take` is allowed. `asyncio.Semaphore` has no
    `take`, and its `locked` searches the waiters, which takes 0.4 µs.
    """

    def __init__(self, limit: int) -> None:
        self.free = limit
        self._waiters: OrderedDict[asyncio.Future[None], None] = OrderedDict()

    def take(self) -> None:
        """Acquires a slot without waiting. Allowed only while `free` is above 0."""
        self.free -= 1

    async def acquire(self) -> None:
        if self.free:
            self.take()
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            await waiter
        except BaseException:
            self._waiters.pop(waiter, None)
            if not waiter.cancelled():  # the slot was passed on before the task was cancelled
                self.release()
            raise

    def release(self) -> None:
        while self._waiters:
            waiter, _ = self._waiters.popitem(last=False)
            if not waiter.done():
                waiter.set_result(None)
                return
        self.free += 1


class ConnectionPool:
    """Keeps at most `limit` connections, which it opens on demand. `reserved_count` of them can be
    acquired only with `use_reserved=True`."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], limit: int, reserved_count: int) -> None:
        self._connect = connect
        self._limit = limit
        self._all = Semaphore(limit)
        self._unreserved = Semaphore(max(1, limit - reserved_count))
        self._idle: list[Connection] = []
        self._is_closed = False

    def try_acquire(self, *, use_reserved: bool) -> "Connection | None":
        """Acquires an idle connection. Returns None if the task must wait, for a release or for a
        new connection."""
        if not self._all.free or not (use_reserved or self._unreserved.free):
            return None
        connection = self._pop_idle()
        if connection is not None:
            self._all.take()
            if not use_reserved:
                self._unreserved.take()
        return connection

    async def acquire(self, *, use_reserved: bool) -> Connection:
        if not use_reserved:
            await self._unreserved.acquire()
        try:
            return await self._pop_or_connect()
        except BaseException:
            if not use_reserved:
                self._unreserved.release()
            raise

    async def _pop_or_connect(self) -> Connection:
        await self._all.acquire()
        try:
            if self._is_closed:
                raise asyncpg.InterfaceError("the connections have been closed")
            return self._pop_idle() or await self._connect()
        except BaseException:
            self._all.release()
            raise

    def _pop_idle(self) -> "Connection | None":
        """Removes the idle connection that was released last, and returns it. Skips connections
        that were closed in use, or by the server while they were idle."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return None

    def release(self, connection: Connection, *, use_reserved: bool) -> None:
        self._idle.append(connection)
        self._all.release()
        if not use_reserved:
            self._unreserved.release()

    async def close(self) -> None:
        """Waits until every connection has been released, then closes them."""
        self._is_closed = True
        for _ in range(self._limit):
            await self._all.acquire()
        idle, self._idle = self._idle, []
        for _ in range(self._limit):
            self._all.release()
        for connection in idle:
            await connection.close()


class CheckoutRegistry:
    """Records which checkout holds which connection, for all checkouts of one process. A checkout
    acquires its connection through this registry."""

    def __init__(self, *, pool: ConnectionPool, watchdog: Watchdog, metrics: Metrics, acquire_seconds: float) -> None:
        self.pool = pool
        self.metrics = metrics
        self.in_use: dict[Connection, Checkout] = {}
        self._watchdog = watchdog
        self._acquire_seconds = acquire_seconds

    async def wait_for_connection(self, *, use_reserved: bool) -> Connection:
        """Waits for a connection, at most `acquire_seconds`. Fails at once if the server is silent.

        `ConnectionPool.try_acquire` needs no such check: the watchdog terminates every connection
        to a silent server, so an idle connection leads to a server that answers.
        """
        try:
            self._watchdog.raise_if_silent()
            async with asyncio.timeout(self._acquire_seconds):
                return await self.pool.acquire(use_reserved=use_reserved)
        except Exception as error:
            raise_if_unavailable(self.metrics, error, "not_done")
            raise

    def count_longer_than(self, seconds: float) -> int:
        """Counts the checkouts that began more than `seconds` ago."""
        limit = time.monotonic() - seconds
        return sum(checkout.began < limit for checkout in self.in_use.values())

    def on_log_message(self, connection: object, message: asyncpg.PostgresLogMessage) -> None:
        checkout = self.in_use.get(connection)  # type: ignore[call-overload]  # the stubs allow for proxies
        if checkout is not None:
            checkout.on_log_message(message)


class Checkout:
    """Holds a connection while its `with` block runs.

    If the task is cancelled, the connection is terminated. The driver would send a cancel request
    instead, which also ends a commit's wait for its standby. The commit would then be visible, but
    on the primary only.
    """

    __slots__ = ("_is_unreplicated", "_outcome", "_registry", "_use_reserved", "began", "connection")
    # Both attributes are set when the `with` block begins.
    connection: Connection
    began: float

    def __init__(self, registry: CheckoutRegistry, outcome: Outcome = "unknown") -> None:
        """`outcome` is the write outcome if the connection breaks: `not_done` if no statement of
        this checkout can write."""
        self._registry = registry
        self._outcome = outcome
        self._use_reserved = may_use_reserved.get()
        self._is_unreplicated = False

    async def __aenter__(self) -> Self:
        registry, use_reserved = self._registry, self._use_reserved
        connection = registry.pool.try_acquire(use_reserved=use_reserved)
        if connection is None:
            connection = await registry.wait_for_connection(use_reserved=use_reserved)
        self.began = time.monotonic()
        self.connection = connection
        registry.in_use[connection] = self
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                await self._raise_if_unavailable(error)
            elif self._is_unreplicated:
                await self._raise_if_unavailable(
                    NotReplicated("the wait for the standby was cancelled: the commit is on the primary only")
                )
        finally:
            del self._registry.in_use[self.connection]
            self._registry.pool.release(self.connection, use_reserved=self._use_reserved)

    async def _raise_if_unavailable(self, error: BaseException) -> None:
        """Raises DatabaseUnavailable in place of `error` if the schema or the server is the cause.
        Otherwise returns, and `error` itself is raised. Terminates the connection if it must not be
        used again."""
        if _ends_connection(error):
            self.connection.terminate()
        if isinstance(error, schema_state.MISMATCHES):
            error = await self._to_mismatch(error)
        if isinstance(error, Exception):
            raise_if_unavailable(self._registry.metrics, error, self._outcome)

    async def _to_mismatch(self, error: asyncpg.PostgresError) -> Exception:
        """Returns a SchemaMismatch that says what is wrong with the schema, or the error itself if
        the schema is not its cause."""
        try:
            detail = await schema_state.describe_mismatch(self.connection, error)
        except asyncio.CancelledError:
            self.connection.terminate()
            raise
        if detail is None:
            return error
        mismatch = SchemaMismatch(detail)
        mismatch.__cause__ = error
        return mismatch

    def on_log_message(self, message: asyncpg.PostgresLogMessage) -> None:
        """Detects a commit whose wait for the standby was cancelled: Postgres reports it as
        successful, with a warning (docs/reliability/rules.md#r8). Compares the name of the server's
        function, because the texts of warnings are translated."""
        if message.server_source_function == "SyncRepWaitForLSN":
            self._is_unreplicated = True


def _ends_connection(error: BaseException) -> bool:
    """Whether the connection must not be used again: its task was cancelled, or its server has
    become read-only."""
    if not isinstance(error, Exception):
        return True
    read_only = asyncpg.ReadOnlySQLTransactionError
    return isinstance(error, read_only) or isinstance(error.__cause__, read_only)
