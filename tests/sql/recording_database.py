"""A database that records the partitions which each named statement locks."""

import re
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from asyncpg import Record

from app.db.pool import Database, Transaction

# Partitions locked by the transaction: planning locks the readable ones, a write locks its target.
LOCKED_PARTITIONS = """
SELECT part.inhparent::regclass::text AS parent, array_agg(DISTINCT part.inhrelid::regclass::text) AS parts
FROM pg_locks
JOIN pg_inherits AS part ON part.inhrelid = pg_locks.relation
JOIN pg_partitioned_table AS divided ON divided.partrelid = part.inhparent AND divided.partstrat = 'h'
WHERE pg_locks.pid = pg_backend_pid() AND pg_locks.locktype = 'relation'
GROUP BY part.inhparent
"""

PartitionsByTable = dict[str, list[str]]
RECORDED: dict[str, list[PartitionsByTable]] = defaultdict(list)


class RecordingTransaction(Transaction):
    async def rows(self, sql: str, *args: object) -> list[Record]:
        rows = await super().rows(sql, *args)
        if name := re.match(r"/\* (\w+) \*/", sql):
            RECORDED[name[1]].append({row["parent"]: row["parts"] for row in await super().rows(LOCKED_PARTITIONS)})
        return rows

    async def rows_in_parts(self, sql: str, *args: object) -> list[Record]:
        return await self.rows(sql, *args)

    async def row(self, sql: str, *args: object) -> Record | None:
        rows = await self.rows(sql, *args)
        return rows[0] if rows else None

    async def value(self, sql: str, *args: object) -> Any:
        row = await self.row(sql, *args)
        return row[0] if row else None


class RecordingDatabase(Database):
    """Runs every statement in its own transaction, and records its locks at the end."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with self.checkout() as checkout, checkout.connection.transaction():
            await checkout.connection.execute("SET LOCAL plan_cache_mode = 'force_custom_plan'")
            yield RecordingTransaction(checkout.connection)

    @asynccontextmanager
    async def read_only_transaction(self, begin: str) -> AsyncIterator[Transaction]:
        async with self.transaction() as transaction:
            yield transaction

    def autocommit(self) -> Any:
        return self.transaction()

    async def rows(self, sql: str, *args: object) -> list[Record]:
        async with self.transaction() as transaction:
            return await transaction.rows(sql, *args)

    async def row(self, sql: str, *args: object) -> Record | None:
        async with self.transaction() as transaction:
            return await transaction.row(sql, *args)

    async def value(self, sql: str, *args: object) -> Any:
        async with self.transaction() as transaction:
            return await transaction.value(sql, *args)
