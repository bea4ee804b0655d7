"""Tricks at the broker's way to the database, by seeded dice: a connection class that asyncpg is given instead of its own.

Temporal's kinds: an error before the statement, the statement and then an error, a delay, a connection that drops.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg

KINDS = ("before", "after", "delay", "drop", "refused")


class FaultyConnection(asyncpg.Connection):
    """The dice are the class's: one seed per process."""

    rng = random.Random(0)
    rate = 0.0

    async def fetch(self, query: str, *args: Any, **options: Any) -> Any:
        return await self._with_fault(lambda: super(FaultyConnection, self).fetch(query, *args, **options))

    async def fetchrow(self, query: str, *args: Any, **options: Any) -> Any:
        return await self._with_fault(lambda: super(FaultyConnection, self).fetchrow(query, *args, **options))

    async def fetchval(self, query: str, *args: Any, **options: Any) -> Any:
        return await self._with_fault(lambda: super(FaultyConnection, self).fetchval(query, *args, **options))

    async def execute(self, query: str, *args: Any, **options: Any) -> Any:
        """Transactions begin and commit through here: a commit may happen and not be heard of."""
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
    """From now on every pool of this process is made of tricky connections."""
    FaultyConnection.rate, FaultyConnection.rng = rate, random.Random(seed)
    plain = asyncpg.create_pool

    def create_pool(*args: Any, **options: Any) -> Any:
        return plain(*args, connection_class=FaultyConnection, **options)

    asyncpg.create_pool = create_pool
