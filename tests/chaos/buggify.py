"""Random faults in the broker's database connections, with a seed: a connection class for asyncpg.

The kinds are Temporal's: an error before the statement, the statement and then an error, a delay, a
dropped connection. One more: a lock timeout.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg

KINDS = ("before", "after", "delay", "drop", "refused")


class FaultyConnection(asyncpg.Connection):
    """A connection with faults. The random numbers belong to the class: one seed per process."""

    rng = random.Random(0)
    rate = 0.0

    async def fetch(self, query: str, *args: Any, **options: Any) -> Any:
        return await self._with_fault(lambda: super(FaultyConnection, self).fetch(query, *args, **options))

    async def fetchrow(self, query: str, *args: Any, **options: Any) -> Any:
        return await self._with_fault(lambda: super(FaultyConnection, self).fetchrow(query, *args, **options))

    async def fetchval(self, query: str, *args: Any, **options: Any) -> Any:
        return await self._with_fault(lambda: super(FaultyConnection, self).fetchval(query, *args, **options))

    async def execute(self, query: str, *args: Any, **options: Any) -> Any:
        """Also runs BEGIN and COMMIT: a commit may succeed although its response is lost."""
        return await self._with_fault(lambda: super(FaultyConnection, self).execute(query, *args, **options))

    async def _with_fault(self, call: Callable[[], Awaitable[Any]]) -> Any:
        if self.rng.random() >= self.rate:
            return await call()
        kind = self.rng.choice(KINDS)
        if kind == "delay":
            await asyncio.sleep(self.rng.uniform(0.01, 0.3))
            return await call()
        if kind == "refused":
            raise asyncpg.LockNotAvailableError("buggify")
        if kind == "after":
            await call()
        self.terminate()
        raise asyncpg.ConnectionDoesNotExistError("buggify: connection was closed in the middle of operation")


def install(rate: float, seed: str) -> None:
    """Makes all later pools of this process use faulty connections."""
    FaultyConnection.rate, FaultyConnection.rng = rate, random.Random(seed)
    original = asyncpg.create_pool

    def create_pool(*args: Any, **options: Any) -> Any:
        return original(*args, connection_class=FaultyConnection, **options)

    asyncpg.create_pool = create_pool
