"""The pool: SQL text on asyncpg, and what a failed call means for the caller (not done, or unknown)."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import asyncpg
from asyncpg import Record

from app.errors import DatabaseUnavailable, Outcome
from app.metrics import Metrics
from app.settings import Settings

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

Connection: TypeAlias = "PoolConnectionProxy[Record]"
S = TypeVar("S")
T = TypeVar("T")

CLOSE_SECONDS = 5

# A plan must not depend on when it was made: what Postgres knows of a queue is out of date within seconds. With statistics from before
# the claims a heartbeat of 1000 leases scanned the table (2,126 ms; by the index 18); made while `jobs` was empty, any plan does, and
# stays cached until somebody analyzes. Plain index scans also lock in the order of the ids, and without nested loops the ids that were
# sent are hashed (put_back of 1000: 27 ms; matched by array position 80). No plan_cache_mode: Citus needs custom plans.
_PLANS = {"enable_seqscan": "off", "enable_bitmapscan": "off", "enable_nestloop": "off", "jit": "off"}

# A server that says one of these has ended our session; a commit may have been on its way (57P01 during a wait for a standby).
_ENDED_MEANWHILE = ("57P01", "57P02", "57P05")
# Refused before anything could be done: starting up, too many connections, lock not to be had, disk or memory full, read-only.
_REFUSED = ("57P03", "53", "55P03", "57014", "25006", "40001", "40P01", "3D000", "28", "42P01", "42703")

_WRITE = re.compile(r"\b(INSERT INTO|UPDATE|DELETE FROM)\b")
# Whether this request (each is a task of its own) has written anything yet: from then on no failure may say that nothing was done.
_written: ContextVar[bool] = ContextVar("written", default=False)


class Runs(Protocol):
    """What a store function needs: the database (each statement by itself) or a transaction (all or nothing)."""

    async def rows(self, sql: str, *args: object) -> list[Record]: ...

    async def row(self, sql: str, *args: object) -> Record | None: ...

    async def value(self, sql: str, *args: object) -> Any: ...


class Transaction:
    """Statements that commit together when the block ends."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def rows(self, sql: str, *args: object) -> list[Record]:
        return await self._connection.fetch(sql, *args)

    async def row(self, sql: str, *args: object) -> Record | None:
        return await self._connection.fetchrow(sql, *args)

    async def value(self, sql: str, *args: object) -> Any:
        return await self._connection.fetchval(sql, *args)


class Database:
    """`value`, `row`, `rows` run one statement in autocommit; `transaction` is for what has to be all or nothing."""

    def __init__(self, dsn: str, settings: Settings, metrics: Metrics) -> None:
        self.dsn = dsn
        self._settings = settings
        self._metrics = metrics
        self._pool: asyncpg.Pool[Record]

    async def open(self) -> None:
        """Opens without connecting: a broker may start before its database, and says so in /readyz."""
        self._pool = asyncpg.create_pool(
            self.dsn,
            min_size=0,
            max_size=self._settings.pool_size,
            reset=_leave_as_is,
            statement_cache_size=1000 if self._settings.statement_cache else 0,
            max_cached_statement_lifetime=0,
            server_settings={"application_name": "longshore", "timezone": "UTC", "lock_timeout": "1000", **_PLANS},
        )
        await self._pool

    async def close(self) -> None:
        """Waits for what is running, but not for ever: a hung connection must not keep the process alive."""
        try:
            await asyncio.wait_for(self._pool.close(), timeout=CLOSE_SECONDS)
        except TimeoutError:
            self._pool.terminate()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        with self._translated("not_done"):
            connection = await self._pool.acquire(timeout=self._settings.acquire_timeout_seconds)
        try:
            with self._translated("unknown"):
                yield connection
        finally:
            await self._pool.release(connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with self.connection() as connection:
            async with connection.transaction():
                yield Transaction(connection)
            _written.set(True)

    async def rows(self, sql: str, *args: object) -> list[Record]:
        return await self._with_one_retry(sql, lambda connection: connection.fetch(sql, *args))

    async def row(self, sql: str, *args: object) -> Record | None:
        return await self._with_one_retry(sql, lambda connection: connection.fetchrow(sql, *args))

    async def value(self, sql: str, *args: object) -> Any:
        return await self._with_one_retry(sql, lambda connection: connection.fetchval(sql, *args))

    async def _with_one_retry(self, sql: str, call: Callable[[Connection], Awaitable[T]]) -> T:
        """Deadlocks and serialization failures are undone whole by Postgres: once more is safe."""
        async with self.connection() as connection:
            try:
                result = await call(connection)
            except (asyncpg.DeadlockDetectedError, asyncpg.SerializationError):
                result = await call(connection)
        if _writes(sql):
            _written.set(True)
        return result

    @contextmanager
    def _translated(self, outcome: Outcome) -> Iterator[None]:
        """Errors before anything was sent are `not_done`; afterwards only the server's own word makes them so."""
        try:
            yield
        except asyncpg.PostgresConnectionError as error:  # the connection broke, although it looks like the server's word (08003)
            raise self._unavailable(error, outcome) from error
        except asyncpg.PostgresError as error:
            state = error.sqlstate or ""
            if state in _ENDED_MEANWHILE:
                raise self._unavailable(error, outcome) from error
            if state.startswith(_REFUSED):
                raise self._unavailable(error, "not_done") from error
            raise
        except (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
            raise self._unavailable(error, outcome) from error

    def _unavailable(self, error: Exception, outcome: Outcome) -> DatabaseUnavailable:
        known: Outcome = "unknown" if _written.get() else outcome
        self._metrics.database_errors.labels(known).inc()
        return DatabaseUnavailable(f"{type(error).__name__}", known)


async def one_by_one(things: Iterable[S], act: Callable[[S], Awaitable[T]]) -> list[T]:
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


@cache
def _writes(sql: str) -> bool:
    return _WRITE.search(sql) is not None


async def _leave_as_is(_connection: "asyncpg.Connection[Record]") -> None:
    """Sessions hold no state worth resetting; the default reset costs a round trip per release."""


def columns(rows: Sequence[Sequence[object]]) -> list[list[object]]:
    """Rows, at least one, turned into the column arrays that `unnest` takes."""
    return [list(column) for column in zip(*rows, strict=True)]
