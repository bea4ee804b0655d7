"""The connections of one process: a stack of idle ones, and semaphores that limit and reserve.

Acquiring an idle connection and releasing it need no task, no timer and no round trip. asyncpg's
own pool takes 100 µs for the same.
"""

from collections.abc import Awaitable, Callable

import asyncpg

from app.db.primary import Connection
from app.db.semaphore import Semaphore


class ConnectionPool:
    """At most `limit` connections, opened on demand. `reserved` of them are for callers that pass
    `reserved=True`."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], limit: int, reserved: int) -> None:
        self._connect = connect
        self._limit = limit
        self._all = Semaphore(limit)
        self._unreserved = Semaphore(max(1, limit - reserved))
        self._idle: list[Connection] = []
        self._is_closed = False

    def try_acquire(self, *, reserved: bool) -> "Connection | None":
        """Acquires an idle connection. Returns None if the caller has to wait for a release or for
        a new connection."""
        if not self._all.free or not (reserved or self._unreserved.free):
            return None
        connection = self._pop_idle()
        if connection is not None:
            self._all.take()
            if not reserved:
                self._unreserved.take()
        return connection

    async def acquire(self, *, reserved: bool) -> Connection:
        if not reserved:
            await self._unreserved.acquire()
        try:
            return await self._pop_or_connect()
        except BaseException:
            if not reserved:
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
        """Discards connections that have been closed: in use, or by the server while they were
        idle."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return None

    def release(self, connection: Connection, *, reserved: bool) -> None:
        self._idle.append(connection)
        self._all.release()
        if not reserved:
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
