"""Runs SQL text on pooled asyncpg connections, in autocommit or in a transaction.

Some connections are reserved for calls that end a lease or keep it alive. `write_outcome` decides
whether a failed call may have written.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar

import asyncpg
from asyncpg import Record

from app.db import session_settings
from app.db.checkout import Checkout, CheckoutRegistry, ConnectionPool, may_use_reserved
from app.db.failure_causes import describe
from app.db.primary import Connection, PrimaryConnector, UnusableServer
from app.db.watchdog import Watchdog
from app.db.write_outcome import mark_written, writes
from app.errors import DatabaseUnavailable
from app.metrics import Metrics
from app.settings import Settings
from app.slices import in_slices

S = TypeVar("S")
T = TypeVar("T")
P = ParamSpec("P")

CLOSE_SECONDS = 5
ROWS_PER_PART = 100  # the driver takes 1.5 ms to decode a hundred jobs
# A statement of the broker takes longer than this only if it waits for a standby or a disk.
LONG_STATEMENT_SECONDS = 5.0

# After one of these errors Postgres has rolled back the whole transaction.
ROLLED_BACK = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)


class Executor(Protocol):
    """An object that runs SQL. Store functions take one as a parameter:

    - `Database` or `AutocommitConnection`: each statement commits alone
    - `Transaction`: all statements commit together
    """

    async def rows(self, sql: str, *args: object) -> list[Record]: ...

    async def row(self, sql: str, *args: object) -> Record | None: ...

    async def value(self, sql: str, *args: object) -> Any: ...


class Transaction:
    """Runs statements that commit together when the `with` block ends."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def rows(self, sql: str, *args: object) -> list[Record]:
        return await self._connection.fetch(sql, *args)

    async def row(self, sql: str, *args: object) -> Record | None:
        return await self._connection.fetchrow(sql, *args)

    async def value(self, sql: str, *args: object) -> Any:
        return await self._connection.fetchval(sql, *args)

    async def rows_in_parts(self, sql: str, *args: object) -> list[Record]:
        """Reads the rows with a cursor, ROWS_PER_PART at a time. The event loop serves other
        requests after each part."""
        return [row async for row in self._connection.cursor(sql, *args, prefetch=ROWS_PER_PART)]


class AutocommitConnection(Checkout):
    """Runs statements outside a transaction, so that each statement commits alone.

    Runs a statement once more after a deadlock or a serialization failure: Postgres has rolled the
    whole statement back.
    """

    __slots__ = ()

    def __init__(self, registry: CheckoutRegistry) -> None:
        super().__init__(registry, "not_done")

    def rows(self, sql: str, *args: object) -> Coroutine[None, None, list[Record]]:
        return self._run(self.connection.fetch, sql, args)

    def row(self, sql: str, *args: object) -> Coroutine[None, None, Record | None]:
        return self._run(self.connection.fetchrow, sql, args)

    def value(self, sql: str, *args: object) -> Coroutine[None, None, Any]:
        return self._run(self.connection.fetchval, sql, args)

    async def _run(self, call: Callable[..., Awaitable[T]], sql: str, args: Sequence[object]) -> T:
        is_write = writes(sql)
        if is_write:
            self._outcome = "unknown"
        try:
            result = await call(sql, *args)
        except ROLLED_BACK:
            result = await call(sql, *args)
        if is_write:
            mark_written()
        return result


class Database:
    """Runs SQL for all services of one process. `value`, `row` and `rows` run one statement in
    autocommit; `transaction` makes several statements atomic."""

    def __init__(self, dsn: str, settings: Settings, metrics: Metrics) -> None:
        self.dsn = dsn
        self._settings = settings
        self._metrics = metrics
        self._connector = PrimaryConnector(
            dsn, durable=settings.require_durable, host_seconds=settings.silent_seconds / 3
        )
        self._watchdog = Watchdog(self._connector, settings.silent_seconds)
        self._watchdog_task: asyncio.Task[None]
        self._pool = ConnectionPool(self._connect, settings.pool_size, settings.connections_reserved)
        self._checkouts = CheckoutRegistry(
            pool=self._pool,
            watchdog=self._watchdog,
            metrics=metrics,
            acquire_seconds=settings.acquire_timeout_seconds,
        )
        metrics.long_statements.set_function(self.long_statements)

    async def open(self) -> None:
        """Starts the watchdog. Does not wait for a connection, because a broker may start before
        its database. /readyz fails until the database answers."""
        self._watchdog_task = asyncio.create_task(self._watchdog.run(), name="database watchdog")

    async def close(self) -> None:
        """Closes all connections. Waits up to CLOSE_SECONDS for running statements, and then
        terminates all connections. A hung connection must not keep the process alive."""
        self._watchdog_task.cancel()
        await asyncio.gather(self._watchdog_task, return_exceptions=True)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._pool.close()
        except TimeoutError:
            self.terminate()

    async def _connect(self) -> Connection:
        has_pooler = not self._settings.statement_cache
        connection = await self._connector.connect(
            statement_cache_size=0 if has_pooler else 1000,
            max_cached_statement_lifetime=0,
            server_settings=session_settings.session_parameters(has_pooler=has_pooler),
        )
        connection.add_log_listener(self._checkouts.on_log_message)
        return connection

    def explain_to_operator(self, problem: DatabaseUnavailable) -> str:
        """Returns the detail of the problem for an operator. Unlike the detail in a response, the
        text contains host and port of the database."""
        error = problem.__cause__
        if isinstance(error, UnusableServer):  # with a cause from the watchdog, without one from the connector
            error = None if isinstance(error.__cause__, TimeoutError) else error.__cause__
        return describe(error, self.dsn) if isinstance(error, OSError | asyncpg.PostgresError) else problem.detail

    def terminate(self) -> None:
        """Terminates every connection, idle or in use."""
        self._connector.terminate()

    def long_statements(self) -> int:
        """Counts the statements and transactions that have been running, or waiting for a standby,
        for more than LONG_STATEMENT_SECONDS. An operator should find out why."""
        return self._checkouts.count_longer_than(LONG_STATEMENT_SECONDS)

    def checkout(self) -> Checkout:
        """Returns a checkout, which holds a connection of the driver during its `with` block."""
        return Checkout(self._checkouts)

    def autocommit(self) -> AutocommitConnection:
        """Returns an autocommit connection, which is acquired at the start of its `with` block.

        Read the clock inside the block, because acquiring may wait for a busy pool. If a lease
        began before the wait, it would be too short, or expired at delivery.
        """
        return AutocommitConnection(self._checkouts)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Runs the `with` block in a transaction. Commits at the end of the block, or rolls back
        after an error in the block."""
        async with self.checkout() as checkout:
            connection = checkout.connection
            await connection.execute("BEGIN")
            try:
                yield Transaction(connection)
            except Exception:
                await connection.execute("ROLLBACK")
                raise
            ended = await connection.execute("COMMIT")
            assert ended == "COMMIT", "COMMIT rolled back: an earlier error in the transaction was suppressed"
            mark_written()

    @asynccontextmanager
    async def read_only_transaction(self, begin: str) -> AsyncIterator[Transaction]:
        """Runs the `with` block in a read-only transaction, which the statement `begin` starts."""
        async with Checkout(self._checkouts, "not_done") as checkout:
            connection = checkout.connection
            await connection.execute(begin)
            try:
                yield Transaction(connection)
            except Exception:
                await connection.execute("ROLLBACK")
                raise
            await connection.execute("COMMIT")

    async def rows(self, sql: str, *args: object) -> list[Record]:
        async with self.autocommit() as connection:
            return await connection.rows(sql, *args)

    async def row(self, sql: str, *args: object) -> Record | None:
        async with self.autocommit() as connection:
            return await connection.row(sql, *args)

    async def value(self, sql: str, *args: object) -> Any:
        async with self.autocommit() as connection:
            return await connection.value(sql, *args)


def uses_reserved_connections(call: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[None, None, T]]:
    """Lets the decorated function use the reserved connections, which claims and enqueues cannot
    use up. Decorate functions that end leases or keep them alive, and the check of the
    configuration: without that check, no API key is known to be valid."""

    @wraps(call)
    async def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        token = may_use_reserved.set(True)
        try:
            return await call(*args, **kwargs)
        finally:
            may_use_reserved.reset(token)

    return wrapper


def retry_after_deadlock(call: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[None, None, T]]:
    """Decorates a function that runs a transaction. Calls the function once more if Postgres rolled
    back the transaction because of a deadlock or a serialization failure. The function must not
    change its arguments."""

    @wraps(call)
    async def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await call(*args, **kwargs)
        except DatabaseUnavailable as error:
            if not isinstance(error.__cause__, ROLLED_BACK):
                raise
        return await call(*args, **kwargs)

    return wrapper


async def for_each(items: Iterable[S], action: Callable[[S], Awaitable[T]]) -> list[T]:
    """Runs the action for each item in turn, and returns the results.

    If an action raises DatabaseUnavailable, for example because another transaction has locked a
    row, the actions for the other items still run. Then the last such exception is raised.
    """
    results: list[T] = []
    failure: DatabaseUnavailable | None = None
    async for item in in_slices(list(items)):
        try:
            results.append(await action(item))
        except DatabaseUnavailable as error:
            failure = error
    if failure is not None:
        raise failure
    return results
