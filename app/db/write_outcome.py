"""Whether a failed database call may have written: `not_done` or `unknown`.

    the call failed before anything was sent             not_done
    the server reported that it refused the statement    not_done
    the connection or the session ended in the meantime  unknown
    an earlier statement of the request has written      unknown

See docs/reliability/rules.md#r7.
"""

import re
from contextvars import ContextVar
from functools import cache

import asyncpg

from app.db.failure_causes import describe
from app.db.primary import ServerRefused
from app.errors import DatabaseUnavailable, Outcome
from app.metrics import Metrics

# The server has ended the session, perhaps during a commit (57P01 during a wait for a standby).
_SESSION_ENDED = ("57P01", "57P02", "57P05")
# The server refused the statement before it changed anything: it is starting up, has no free
# connection or lock, its disk or memory is full or failing, or it is read-only.
_REFUSED = (
    "57P03",
    "53",
    "58",
    "55P03",
    "57014",
    "25006",
    "25P03",
    "40001",
    "40P01",
    "3D000",
    "28",
    "42P01",
    "42703",
    "42501",
)

# The server reported nothing. PostgresConnectionError is the driver's (08003: the connection broke).
_UNREPORTED = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)

_WRITE = re.compile(r"\b(INSERT INTO|UPDATE|DELETE FROM)\b")
# Whether this request may have written anything (each request is a task of its own). From then on
# no failure may claim that nothing was done.
_written: ContextVar[bool] = ContextVar("written", default=False)


class SchemaMismatch(Exception):
    """A statement does not match the schema, or the role lacks a privilege. Postgres changed
    nothing."""


class NotReplicated(ConnectionError):
    """A commit reached only the primary: a failover would lose it."""


def reset_written() -> None:
    """For a task that serves several requests: called before each."""
    _written.set(False)


def has_written() -> bool:
    return _written.get()


def mark_written(sql: str | None = None) -> None:
    """Records that a transaction (None), or this statement, has ended."""
    if sql is None or _writes(sql):
        _written.set(True)


def raise_if_unavailable(metrics: Metrics, error: Exception, outcome: Outcome) -> None:
    """Raises DatabaseUnavailable with `outcome`, unless the server reported that nothing was done:
    then with `not_done`. Pass `not_done` before anything was sent, `unknown` afterwards. Returns if
    the database is available, and the caller gets the error itself."""
    reported = _outcome(error, outcome)
    if reported is not None:
        raise _unavailable(metrics, error, reported) from error


def _outcome(error: Exception, unreported: Outcome) -> Outcome | None:
    if isinstance(error, _UNREPORTED):
        return unreported
    if isinstance(error, SchemaMismatch):
        return "not_done"
    if not isinstance(error, asyncpg.PostgresError):
        return None
    state = error.sqlstate or ""
    # PANIC: if the disk of the WAL is full or fails, the whole server stops. A commit of that
    # moment may be on the disk or not.
    if state in _SESSION_ENDED or error.severity_en == "PANIC":
        return unreported
    return "not_done" if state.startswith(_REFUSED) else None


def _unavailable(metrics: Metrics, error: Exception, outcome: Outcome) -> DatabaseUnavailable:
    known: Outcome = "unknown" if has_written() else outcome
    if known == "unknown":
        _written.set(True)  # later failures of this request are uncertain, too
    metrics.database_errors.labels(known).inc()
    return DatabaseUnavailable(_detail(error), known)


def _detail(error: Exception) -> str:
    """The `detail` of the 503. Names no host or address, because any caller may see it."""
    if isinstance(error, ServerRefused | NotReplicated | SchemaMismatch):
        return str(error)
    return describe(error)


@cache
def _writes(sql: str) -> bool:
    return _WRITE.search(sql) is not None
