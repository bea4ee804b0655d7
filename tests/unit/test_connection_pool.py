"""The connection pool with fake connections: which caller gets a connection at once, and which
waits.
"""

import asyncio
from typing import Any

import asyncpg
import pytest

from app.db.checkout import ConnectionPool


class FakeConnection:
    def __init__(self) -> None:
        self.closed = False

    def is_closed(self) -> bool:
        return self.closed

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed = True


async def connect() -> Any:
    return FakeConnection()


async def pool_with_idle(limit: int, reserved_count: int = 0) -> tuple[ConnectionPool, list[Any]]:
    """A pool whose connections have all been opened and released."""
    pool = ConnectionPool(connect, limit, reserved_count)
    connections = [await pool.acquire(use_reserved=True) for _ in range(limit)]
    for connection in connections:
        pool.release(connection, use_reserved=True)
    return pool, connections


def test_idle_connection_is_acquired_at_once_and_a_new_one_is_not() -> None:
    async def scenario() -> None:
        pool = ConnectionPool(connect, 2, 0)
        assert pool.try_acquire(use_reserved=False) is None
        connection = await pool.acquire(use_reserved=False)
        pool.release(connection, use_reserved=False)
        assert pool.try_acquire(use_reserved=False) is connection
        assert pool.try_acquire(use_reserved=False) is None

    asyncio.run(scenario())


def test_closed_connections_are_never_acquired() -> None:
    """Whether they were closed in use or while they were idle."""

    async def scenario() -> None:
        pool, connections = await pool_with_idle(3)
        in_use: Any = pool.try_acquire(use_reserved=False)
        for connection in (in_use, connections[1]):
            connection.closed = True
        pool.release(in_use, use_reserved=False)
        assert pool.try_acquire(use_reserved=False) is connections[0]
        assert pool.try_acquire(use_reserved=False) is None
        assert await pool.acquire(use_reserved=False) not in connections

    asyncio.run(scenario())


def test_last_connections_are_for_reserved_callers() -> None:
    async def scenario() -> None:
        pool, _ = await pool_with_idle(3, reserved_count=1)
        assert [pool.try_acquire(use_reserved=False) is None for _ in range(3)] == [False, False, True]
        assert pool.try_acquire(use_reserved=True) is not None

    asyncio.run(scenario())


def test_caller_does_not_overtake_one_that_waits() -> None:
    async def scenario() -> None:
        pool, _ = await pool_with_idle(1)
        connection: Any = pool.try_acquire(use_reserved=True)
        waiting = asyncio.create_task(pool.acquire(use_reserved=True))
        await asyncio.sleep(0)
        pool.release(connection, use_reserved=True)
        assert pool.try_acquire(use_reserved=True) is None
        assert await waiting is connection

    asyncio.run(scenario())


def test_closed_pool_returns_no_connection_even_while_it_is_closing() -> None:
    async def scenario() -> None:
        pool, connections = await pool_with_idle(2)
        in_use: Any = pool.try_acquire(use_reserved=True)
        closing = asyncio.create_task(pool.close())
        for _ in range(5):
            await asyncio.sleep(0)
            assert pool.try_acquire(use_reserved=True) is None
        pool.release(in_use, use_reserved=True)
        while not closing.done():
            assert pool.try_acquire(use_reserved=True) is None
            await asyncio.sleep(0)
        with pytest.raises(asyncpg.InterfaceError, match="closed"):
            await pool.acquire(use_reserved=True)
        assert all(connection.closed for connection in connections)

    asyncio.run(scenario())
