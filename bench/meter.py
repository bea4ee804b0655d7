"""Counts what a call costs its one connection: round trips, buffers, WAL bytes, time."""

import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import NamedTuple, TypeVar

from asyncpg.connection import LoggedQuery

from app.db.pool import Database

T = TypeVar("T")

# Run before and after each call; neither touches a buffer. The first makes the second see everything.
FLUSH = "SELECT pg_stat_force_next_flush()"
READ = """
SELECT pg_stat_get_db_blocks_fetched($1::oid) AS buffers,
    (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint AS wal
"""


class Call(NamedTuple):
    jobs: int
    round_trips: int
    buffers: int
    wal: int
    seconds: float


class Tally(list[Call]):
    """All calls of one kind."""

    def per_job(self, name: str) -> float:
        return float(sum(getattr(call, name) for call in self) / sum(call.jobs for call in self))

    def per_call(self, name: str) -> float:
        """The median, because other load on the machine disturbs single calls."""
        return float(median(getattr(call, name) for call in self))


class Meter:
    """Measures a pool of one connection: all that it has sent, touched and written belongs to the call."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._sent = 0
        self._oid = 0

    async def attach(self) -> None:
        async with self._db.checkout() as checkout:
            connection = checkout.connection
            self._oid = await connection.fetchval("SELECT oid FROM pg_database WHERE datname = current_database()")
            connection.add_query_logger(self._count_query)

    def _count_query(self, logged: LoggedQuery) -> None:
        self._sent += logged.query not in (FLUSH, READ)

    async def measure(self, tally: Tally, jobs: int, work: Callable[[], Awaitable[T]]) -> T:
        before = await self._read()
        began = time.perf_counter()
        result = await work()
        seconds = time.perf_counter() - began
        sent, buffers, wal = (now - then for now, then in zip(await self._read(), before, strict=True))
        tally.append(Call(jobs, sent, buffers, wal, seconds))
        return result

    async def _read(self) -> tuple[int, int, int]:
        """Reads the counters. A statement is logged a moment after its response: certainly before
        the response to the next.
        """
        await self._db.value(FLUSH)
        row = await self._db.row(READ, self._oid)
        assert row is not None
        return self._sent, row["buffers"], row["wal"]
