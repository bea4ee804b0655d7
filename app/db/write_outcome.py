"""What a failed database call means for the caller: not done, or unknown. The taxonomy of R7, by whether anything was sent."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import asyncpg

from app.db.failure_causes import describe
from app.db.primary import ServerRefused
from app.errors import DatabaseUnavailable, Outcome
from app.metrics import Metrics

# A server that says one of these has ended our session; a commit may have been on its way (57P01 during a wait for a standby).
_ENDED_MEANWHILE = ("57P01", "57P02", "57P05")
# Refused before anything was done: starting up, no connection or lock to be had, disk or memory full or failing, read-only.
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

_WRITE = re.compile(r"\b(INSERT INTO|UPDATE|DELETE FROM)\b")
# Whether this request (each is a task of its own) may have written anything: from then on no failure may say that nothing was done.
_written: ContextVar[bool] = ContextVar("written", default=False)


class Checkout:
    """A connection in somebody's hands: since when, and what the server has said meanwhile."""

    __slots__ = ("began", "unreplicated")

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.unreplicated = False

    def hear(self, message: asyncpg.PostgresLogMessage) -> None:
        """A commit whose wait for the standby was cancelled is told as done, with a warning beside it (R8). By the name of the server's
        function, as its texts are translated."""
        if message.server_source_function == "SyncRepWaitForLSN":
            self.unreplicated = True


class SchemaMismatch(Exception):
    """A statement does not match the schema, or the role lacks a privilege. Postgres changed nothing."""


class NotReplicated(ConnectionError):
    """Committed on the primary alone: a failover would lose it."""


def reset_written() -> None:
    """A task that lives on begins anew."""
    _written.set(False)


def has_written() -> bool:
    return _written.get()


def mark_written(sql: str | None = None) -> None:
    """A transaction, or this statement, has come to its end."""
    if sql is None or _writes(sql):
        _written.set(True)


@contextmanager
def translate_errors(metrics: Metrics, outcome: Outcome) -> Iterator[None]:
    """Errors before anything was sent are `not_done`; afterwards only the server's own word makes them so."""
    try:
        yield
    except (
        asyncpg.PostgresConnectionError
    ) as error:  # the connection broke, although it looks like the server's word (08003)
        raise _unavailable(metrics, error, outcome) from error
    except asyncpg.PostgresError as error:
        state = error.sqlstate or ""
        # When the log's disk is full or fails the whole server gives up, and what it was just committing may be on that disk or not.
        if state in _ENDED_MEANWHILE or error.severity_en == "PANIC":
            raise _unavailable(metrics, error, outcome) from error
        if state.startswith(_REFUSED):
            raise _unavailable(metrics, error, "not_done") from error
        raise
    except SchemaMismatch as error:
        raise _unavailable(metrics, error, "not_done") from error
    except (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        raise _unavailable(metrics, error, outcome) from error


def _unavailable(metrics: Metrics, error: Exception, outcome: Outcome) -> DatabaseUnavailable:
    known: Outcome = "unknown" if has_written() else outcome
    if known == "unknown":
        _written.set(True)  # a later failure of the same request is no more certain than this one
    metrics.database_errors.labels(known).inc()
    return DatabaseUnavailable(_detail(error), known)


def _detail(error: Exception) -> str:
    """The `detail` of the 503. It names no host or address, because any caller may see it."""
    if isinstance(error, ServerRefused | NotReplicated | SchemaMismatch):
        return str(error)
    return describe(error)


@cache
def _writes(sql: str) -> bool:
    return _WRITE.search(sql) is not None
