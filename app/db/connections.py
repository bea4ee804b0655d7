"""The connections of a process: a stack of those that nobody uses. Taken and given back without a task, a timer or a round trip, for which
asyncpg's pool takes 100 µs."""

import asyncio
from collections.abc import Awaitable, Callable

import asyncpg

from app.db.primary import Connection


class IdleConnections:
    """At most so many, opened when they are needed; of these some are reserved for who goes reserved."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], most: int, reserved: int) -> None:
        self._connect = connect
        self._most = most
        self._places = asyncio.Semaphore(most)
        self._ordinary = asyncio.Semaphore(max(1, most - reserved))
        self._free: list[Connection] = []
        self._closed = False

    def is_idle(self, *, reserved: bool) -> bool:
        """Whether `take` need not wait, neither for a place nor for a server."""
        while self._free and self._free[-1].is_closed():
            self._free.pop()
        return bool(self._free) and not self._places.locked() and (reserved or not self._ordinary.locked())

    async def take(self, *, reserved: bool) -> Connection:
        if not reserved:
            await self._ordinary.acquire()
        try:
            return await self._take()
        except BaseException:
            if not reserved:
                self._ordinary.release()
            raise

    async def _take(self) -> Connection:
        await self._places.acquire()
        try:
            if self._closed:
                raise asyncpg.InterfaceError("the connections have been closed")
            while self._free:
                connection = self._free.pop()
                if not connection.is_closed():
                    return connection
            return await self._connect()
        except BaseException:
            self._places.release()
            raise

    def release(self, connection: Connection, *, reserved: bool) -> None:
        if not connection.is_closed():
            self._free.append(connection)
        self._places.release()
        if not reserved:
            self._ordinary.release()

    async def close(self) -> None:
        """When all have been given back."""
        self._closed = True
        for _ in range(self._most):
            await self._places.acquire()
        for _ in range(self._most):
            self._places.release()
        while self._free:
            await self._free.pop().close()
