"""A database that notes which parts of the divided tables each named statement touches."""

import re
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from asyncpg import Record

from app.db.pool import Database, Transaction

# What the transaction has locked: planning locks what a plan can reach, and a row that is written locks where it goes.
TOUCHED = """
SELECT part.inhparent::regclass::text AS parent, array_agg(DISTINCT part.inhrelid::regclass::text) AS parts
FROM pg_locks
JOIN pg_inherits AS part ON part.inhrelid = pg_locks.relation
JOIN pg_partitioned_table AS divided ON divided.partrelid = part.inhparent AND divided.partstrat = 'h'
WHERE pg_locks.pid = pg_backend_pid() AND pg_locks.locktype = 'relation'
GROUP BY part.inhparent
"""

Touched = dict[str, list[str]]
NOTES: dict[str, list[Touched]] = defaultdict(list)


class WatchedTransaction(Transaction):
    async def rows(self, sql: str, *args: object) -> list[Record]:
        rows = await super().rows(sql, *args)
        if name := re.match(r"/\* (\w+) \*/", sql):
            NOTES[name[1]].append({row["parent"]: row["parts"] for row in await super().rows(TOUCHED)})
        return rows

    async def row(self, sql: str, *args: object) -> Record | None:
        rows = await self.rows(sql, *args)
        return rows[0] if rows else None

    async def value(self, sql: str, *args: object) -> Any:
        row = await self.row(sql, *args)
        return row[0] if row else None


class WatchedDatabase(Database):
    """Every statement in a transaction of its own, at whose end it is known what was touched."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with self.connection() as connection, connection.transaction():
            await connection.execute("SET LOCAL plan_cache_mode = 'force_custom_plan'")
            yield WatchedTransaction(connection)

    @asynccontextmanager
    async def reading(self, begin: str) -> AsyncIterator[Transaction]:
        async with self.transaction() as transaction:
            yield transaction

    @asynccontextmanager
    async def held(self) -> AsyncIterator[Any]:
        async with self.transaction() as transaction:
            yield transaction

    async def rows(self, sql: str, *args: object) -> list[Record]:
        async with self.transaction() as transaction:
            return await transaction.rows(sql, *args)

    async def row(self, sql: str, *args: object) -> Record | None:
        async with self.transaction() as transaction:
            return await transaction.row(sql, *args)

    async def value(self, sql: str, *args: object) -> Any:
        async with self.transaction() as transaction:
            return await transaction.value(sql, *args)
