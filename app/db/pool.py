"""The pool: SQL text on asyncpg. What ends a lease or keeps it alive has connections in reserve; what a failure means is in `outcomes`."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar

import asyncpg
from asyncpg import Record

from app.db import schema_state, session_settings
from app.db.connections import IdleConnections
from app.db.failure_causes import describe
from app.db.primary import Connection, PrimaryConnector, ServerRefused
from app.db.watchdog import Watchdog
from app.db.write_outcome import Checkout, NotReplicated, SchemaMismatch, mark_written, translate_errors
from app.errors import DatabaseUnavailable
from app.metrics import Metrics
from app.settings import Settings

S = TypeVar("S")
T = TypeVar("T")
P = ParamSpec("P")

CLOSE_SECONDS = 5
LONG_SECONDS = 5.0  # no statement of ours takes that long, unless it waits for a standby or for a disk

ROLLED_BACK = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)  # Postgres rolls back the whole transaction

_reserved: ContextVar[bool] = ContextVar("ahead", default=False)


class Executor(Protocol):
    """What a store function needs: the database (each statement by itself) or a transaction (all or nothing)."""

    async def rows(self, sql: str, *args: object) -> list[Record]: ...

    async def row(self, sql: str, *args: object) -> Record | None: ...

    async def value(self, sql: str, *args: object) -> Any: ...


class _OnConnection:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def rows(self, sql: str, *args: object) -> list[Record]:
        return await self._run(self._connection.fetch, sql, args)

    async def row(self, sql: str, *args: object) -> Record | None:
        return await self._run(self._connection.fetchrow, sql, args)

    async def value(self, sql: str, *args: object) -> Any:
        return await self._run(self._connection.fetchval, sql, args)

    async def _run(self, call: Callable[..., Awaitable[T]], sql: str, args: Sequence[object]) -> T:
        return await call(sql, *args)


class Transaction(_OnConnection):
    """Statements that commit together when the block ends."""


class AutocommitConnection(_OnConnection):
    """Statements each by itself. Deadlocks and serialization failures are undone whole by Postgres: once more is safe."""

    async def _run(self, call: Callable[..., Awaitable[T]], sql: str, args: Sequence[object]) -> T:
        try:
            result = await call(sql, *args)
        except ROLLED_BACK:
            result = await call(sql, *args)
        mark_written(sql)
        return result


class Database:
    """`value`, `row`, `rows` run one statement in autocommit; `transaction` is for what has to be all or nothing."""

    def __init__(self, dsn: str, settings: Settings, metrics: Metrics) -> None:
        self.dsn = dsn
        self._settings = settings
        self._metrics = metrics
        self._servers = PrimaryConnector(
            dsn, durable=settings.require_durable, host_seconds=settings.silent_seconds / 3
        )
        self._watchdog = Watchdog(self._servers, settings.silent_seconds)
        self._reader: asyncio.Task[None]
        self._connections = IdleConnections(self._connect, settings.pool_size, settings.connections_reserved)
        self._uses: dict[Connection, Checkout] = {}
        metrics.long_statements.set_function(self.long_statements)

    async def open(self) -> None:
        """Opens without connecting: a broker may start before its database, and says so in /readyz."""
        self._reader = asyncio.create_task(self._watchdog.run(), name="database watchdog")

    async def close(self) -> None:
        """Waits for what is running, but not for ever: a hung connection must not keep the process alive."""
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._connections.close()
        except TimeoutError:
            self.terminate()

    async def _connect(self) -> Connection:
        pooled = not self._settings.statement_cache
        connection = await self._servers.connect(
            statement_cache_size=0 if pooled else 1000,
            max_cached_statement_lifetime=0,
            server_settings=session_settings.session_parameters(pooled=pooled),
        )
        connection.add_log_listener(self._hear)
        return connection

    def _hear(self, connection: object, message: asyncpg.PostgresLogMessage) -> None:
        use = self._uses.get(connection)  # type: ignore[call-overload]  # the stubs think of proxies too
        if use is not None:
            use.hear(message)

    def explain_to_operator(self, problem: DatabaseUnavailable) -> str:
        """The problem's detail with host and port, which callers must not see."""
        error = problem.__cause__
        if isinstance(error, ServerRefused):  # by the watchdog, or for what the server said
            error = None if isinstance(error.__cause__, TimeoutError) else error.__cause__
        return describe(error, self.dsn) if isinstance(error, OSError | asyncpg.PostgresError) else problem.detail

    def terminate(self) -> None:
        """Every connection, whoever has it."""
        self._servers.terminate()

    def long_statements(self) -> int:
        """How many have been running, or waiting for a standby, for so long that somebody should look."""
        since = time.monotonic() - LONG_SECONDS
        return sum(use.began < since for use in self._uses.values())

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """If its caller is cancelled it is terminated: what the driver would send, a cancel request, also ends the wait for a standby,
        and a commit that is on the primary alone would be there for all to see."""
        reserved = _reserved.get()
        with translate_errors(self._metrics, "not_done"):
            connection = await self._acquire(reserved=reserved)
        use = self._uses[connection] = Checkout()
        try:
            with translate_errors(self._metrics, "unknown"):
                try:
                    yield connection
                except schema_state.MISMATCHES as error:
                    await _explain(connection, error)
                    raise
                if use.unreplicated:
                    raise NotReplicated("the wait for the standby was cancelled: it is on the primary alone")
        except BaseException as error:
            if not isinstance(error, Exception) or isinstance(error.__cause__, asyncpg.ReadOnlySQLTransactionError):
                connection.terminate()
            raise
        finally:
            del self._uses[connection]
            self._connections.release(connection, reserved=reserved)

    async def _acquire(self, *, reserved: bool) -> Connection:
        self._watchdog.raise_if_silent()
        if self._connections.is_idle(reserved=reserved):
            return await self._connections.take(reserved=reserved)
        async with asyncio.timeout(self._settings.acquire_timeout_seconds):
            return await self._connections.take(reserved=reserved)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[AutocommitConnection]:
        """For what begins at the moment at which it is written: with a busy pool that is not the one at which it was asked for, and a
        lease would be short, or over, before it is handed out."""
        async with self.connection() as connection:
            yield AutocommitConnection(connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with self.connection() as connection:
            await connection.execute("BEGIN")
            try:
                yield Transaction(connection)
            except Exception:
                await connection.execute("ROLLBACK")
                raise
            ended = await connection.execute("COMMIT")
            assert ended == "COMMIT", "a statement had failed, and nobody said so"
            mark_written()

    @asynccontextmanager
    async def reading(self, begin: str) -> AsyncIterator[Transaction]:
        """A read-only transaction. `begin` is the statement that starts it."""
        async with self.connection() as connection:
            await connection.execute(begin)
            try:
                yield Transaction(connection)
            except Exception:
                await connection.execute("ROLLBACK")
                raise
            await connection.execute("COMMIT")

    async def rows(self, sql: str, *args: object) -> list[Record]:
        async with self.connection() as connection:
            return await AutocommitConnection(connection).rows(sql, *args)

    async def row(self, sql: str, *args: object) -> Record | None:
        async with self.connection() as connection:
            return await AutocommitConnection(connection).row(sql, *args)

    async def value(self, sql: str, *args: object) -> Any:
        async with self.connection() as connection:
            return await AutocommitConnection(connection).value(sql, *args)


async def _explain(connection: Connection, error: asyncpg.PostgresError) -> None:
    """Raises SchemaMismatch with a sentence that says which revision is needed, unless the schema is not the cause."""
    explanation = await schema_state.explain(connection, error)
    if explanation is not None:
        raise SchemaMismatch(explanation) from error


def uses_reserved_connections(call: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[None, None, T]]:
    """What ends a lease or keeps it alive goes ahead of the rest: its connections are not used up by claims and enqueues."""

    @wraps(call)
    async def called(*args: P.args, **fields: P.kwargs) -> T:
        before = _reserved.set(True)
        try:
            return await call(*args, **fields)
        finally:
            _reserved.reset(before)

    return called


def retry_after_deadlock(call: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[None, None, T]]:
    """Repeats a call with a transaction once if Postgres rolled it back as the victim of a deadlock or a serialization failure. The first
    try must not have changed the arguments of the call."""

    @wraps(call)
    async def called(*args: P.args, **fields: P.kwargs) -> T:
        try:
            return await call(*args, **fields)
        except DatabaseUnavailable as error:
            if not isinstance(error.__cause__, ROLLED_BACK):
                raise
        return await call(*args, **fields)

    return called


async def for_each(things: Iterable[S], act: Callable[[S], Awaitable[T]]) -> list[T]:
    """All of them, though one may fail, as a row of it is in other hands: that is told when the others are done."""
    done: list[T] = []
    failed: DatabaseUnavailable | None = None
    for thing in list(things):
        try:
            done.append(await act(thing))
        except DatabaseUnavailable as error:
            failed = error
    if failed is not None:
        raise failed
    return done


def to_columns(rows: Sequence[Sequence[object]]) -> list[Sequence[object] | None]:
    """Rows, at least one, turned into the column arrays that `unnest` takes. Where all are NULL no array is sent: `unnest` fills up what
    is shorter with NULLs, and the driver takes 0.3 µs for each (of the 24 columns of a new job most are)."""
    return [
        None if column[0] is None and column.count(None) == len(column) else column
        for column in zip(*rows, strict=True)
    ]
