"""Decides the write outcome of a failed database call: whether the call may have written.

The first line that applies decides:

    an earlier statement of the request has written      unknown
    the call failed before a statement was sent          not_done
    only statements that cannot write were sent          not_done
    the server reported that it rejected the statement   not_done
    the connection or the session ended in the meantime  unknown

See docs/reliability/rules.md#r7.
"""

import re
from contextvars import ContextVar
from functools import cache

import asyncpg

from app.db.failure_causes import describe
from app.db.primary import UnusableServer
from app.errors import DatabaseUnavailable, Outcome
from app.metrics import Metrics

# SQLSTATEs that the server sends when it ends the session, perhaps during a commit.
_SESSION_ENDED = (
    "57P01",  # an administrator ended the session or the server, even during a wait for a standby
    "57P02",  # another process of the server crashed
    "57P05",  # the session was idle for too long
)
# SQLSTATEs, and classes of SQLSTATEs, by which the server reports that it changed nothing.
_REJECTED = (
    "57P03",  # the server is starting up or shutting down
    "53",  # no free connection, or disk or memory is full
    "58",  # a system error, for example of the disk
    "55P03",  # a lock did not become free in time
    "57014",  # the statement was cancelled
    "25006",  # the server is read-only
    "25P03",  # the transaction was idle for too long
    "40001",  # a serialization failure
    "40P01",  # a deadlock
    "3D000",  # the database does not exist
    "28",  # the server rejects the role or its password
    "42P01",  # a table does not exist
    "42703",  # a column does not exist
    "42501",  # the role lacks a privilege
)

# Errors of the network and of the driver, without a report from the server. The driver raises
# PostgresConnectionError (08003) when the connection breaks.
_UNREPORTED = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)

# pg_logical_emit_message changes no row, but counts as a write, because its commit waits until
# earlier writes are on the standby.
_WRITE = re.compile(r"\b(INSERT INTO|UPDATE|DELETE FROM|claim_jobs|pg_logical_emit_message)\b")
# Whether this request may have written anything. Each request is a task of its own, and so has a
# value of its own. Once the value is True, the outcome of every failed call is `unknown`.
_written: ContextVar[bool] = ContextVar("written", default=False)


class SchemaMismatch(Exception):
    """A statement does not match the schema, or the role lacks a privilege. The statement changed
    nothing."""


class NotReplicated(ConnectionError):
    """A commit reached only the primary: a failover would lose it."""


def reset_written() -> None:
    """Records that nothing has been written yet. A task that serves several requests calls this
    before each request."""
    _written.set(False)


def has_written() -> bool:
    return _written.get()


def mark_written() -> None:
    """Records that this request has written, so that the outcome of a later failure is
    `unknown`."""
    _written.set(True)


def raise_if_unavailable(metrics: Metrics, error: Exception, outcome: Outcome) -> None:
    """Raises DatabaseUnavailable if `error` means that the database is unavailable. Otherwise
    returns, because the statement is the cause of the error.

    The outcome of the exception is the first that applies:

    - `unknown`, if an earlier statement of the request has written
    - `not_done`, if the server reported that it did nothing
    - `outcome`: pass `unknown` if a statement that writes was sent, and otherwise `not_done`
    """
    reported = _outcome(error, outcome)
    if reported is not None:
        raise _unavailable(metrics, error, reported) from error


def _outcome(error: Exception, default_outcome: Outcome) -> Outcome | None:
    """Returns the write outcome of the failed statement:

    - `default_outcome`, if the server did not report whether it did anything
    - `not_done`, if the server reported that it did nothing
    - None, if the database is available and the statement is the cause of the error
    """
    if isinstance(error, _UNREPORTED):
        return default_outcome
    if isinstance(error, SchemaMismatch):
        return "not_done"
    if not isinstance(error, asyncpg.PostgresError):
        return None
    state = error.sqlstate or ""
    # If the disk of the WAL is full or fails, the whole server stops with a PANIC. A commit at that
    # moment may be on the disk or not.
    if state in _SESSION_ENDED or error.severity_en == "PANIC":
        return default_outcome
    return "not_done" if state.startswith(_REJECTED) else None


def _unavailable(metrics: Metrics, error: Exception, outcome: Outcome) -> DatabaseUnavailable:
    known: Outcome = "unknown" if has_written() else outcome
    if known == "unknown":
        _written.set(True)  # later failures of this request are `unknown`, too
    metrics.database_errors.labels(known).inc()
    return DatabaseUnavailable(_detail(error), known)


def _detail(error: Exception) -> str:
    """Returns the `detail` of the 503. The text contains no host and no address, because any caller
    may see it."""
    if isinstance(error, UnusableServer | NotReplicated | SchemaMismatch):
        return str(error)
    return describe(error)


@cache
def writes(sql: str) -> bool:
    """Whether the statement may write, judged by the keywords in its text."""
    return _WRITE.search(sql) is not None
