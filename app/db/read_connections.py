"""Runs reads that may scan many rows: lists, searches, groups, statistics.

These reads use a limited share of the connections and have a time limit, so that eight searches of
a large table leave connections for enqueues and claims. The time limit is set per transaction (`SET
LOCAL`), which works through a pooler in transaction mode. At the limit the server itself cancels
the statement, so the statement costs nothing after the response was sent.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from asyncpg import QueryCanceledError, Record

from app.db.pool import Database, Transaction
from app.errors import DatabaseUnavailable
from app.settings import Settings


class ReadConnections:
    """Runs reads on a limited share of the connections, each in a read-only transaction of its own
    with a time limit."""

    def __init__(self, db: Database, settings: Settings) -> None:
        self._db = db
        self._wait_seconds = settings.acquire_timeout_seconds
        self._timeout_seconds = settings.read_timeout_seconds
        self._begin = f"BEGIN READ ONLY; SET LOCAL statement_timeout = {max(1, round(self._timeout_seconds * 1000))}"
        self._has_pooler = not settings.statement_cache
        self._slots = asyncio.Semaphore(settings.read_connections)

    async def rows(self, sql: str, *args: object) -> list[Record]:
        """Reads the rows in parts. The driver blocks the event loop while it decodes a part, but
        between the parts the event loop serves other requests.

        Behind a pooler, reads all rows at once: a cursor needs a named statement, and another
        client of the pooler may use the same name.
        """
        async with self._transaction() as transaction:
            return await (transaction.rows if self._has_pooler else transaction.rows_in_parts)(sql, *args)

    async def row(self, sql: str, *args: object) -> Record | None:
        async with self._transaction() as transaction:
            return await transaction.row(sql, *args)

    async def value(self, sql: str, *args: object) -> Any:
        async with self._transaction() as transaction:
            return await transaction.value(sql, *args)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Transaction]:
        """Runs the `with` block in a read-only transaction. If `read_connections` transactions are
        running, first waits until one has ended, at most `acquire_timeout_seconds`."""
        await self._wait_for_slot()
        try:
            async with self._db.read_only_transaction(self._begin) as transaction:
                yield transaction
        except DatabaseUnavailable as error:
            if isinstance(error.__cause__, QueryCanceledError):
                raise DatabaseUnavailable(self._too_slow(), error.outcome) from error
            raise
        finally:
            self._slots.release()

    async def _wait_for_slot(self) -> None:
        try:
            async with asyncio.timeout(self._wait_seconds):
                await self._slots.acquire()
        except TimeoutError:
            detail = "too many lists and searches are running: retry later, or narrow the filters"
            raise DatabaseUnavailable(detail, "not_done") from None

    def _too_slow(self) -> str:
        return (
            f"the search took longer than {self._timeout_seconds:g} seconds: "
            "narrow the filter, for example by queue, state or time"
        )
