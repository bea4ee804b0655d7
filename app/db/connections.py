"""The connections of one process: a stack of idle ones, and semaphores that limit and reserve.

Acquiring an idle connection and releasing it need no task, no timer and no round trip. asyncpg's
own pool takes 100 µs for the same.
"""

import asyncio
from collections.abc import Awaitable, Callable

import asyncpg

from app.db.primary import Connection


class ConnectionPool:
    """At most `limit` connections, opened on demand. `reserved` of them are for callers that pass
    `reserved=True`."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], limit: int, reserved: int) -> None:
        self._connect = connect
        self._limit = limit
        self._all = asyncio.Semaphore(limit)
        self._unreserved = asyncio.Semaphore(max(1, limit - reserved))
        self._idle: list[Connection] = []
        self._is_closed = False

    def has_idle(self, *, reserved: bool) -> bool:
        """Whether `acquire` returns at once: it waits neither for a release nor for a new
        connection."""
        while self._idle and self._idle[-1].is_closed():
            self._idle.pop()
        return bool(self._idle) and not self._all.locked() and (reserved or not self._unreserved.locked())

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
            while self._idle:
                connection = self._idle.pop()
                if not connection.is_closed():
                    return connection
            return await self._connect()
        except BaseException:
            self._all.release()
            raise

    def release(self, connection: Connection, *, reserved: bool) -> None:
        if not connection.is_closed():
            self._idle.append(connection)
        self._all.release()
        if not reserved:
            self._unreserved.release()

    async def close(self) -> None:
        """Waits until every connection has been released, then closes them."""
        self._is_closed = True
        for _ in range(self._limit):
            await self._all.acquire()
        for _ in range(self._limit):
            self._all.release()
        while self._idle:
            await self._idle.pop().close()
