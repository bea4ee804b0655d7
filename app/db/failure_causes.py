"""Why a database call failed, in words for callers and operators. Pure.

A caller's 503 and `/readyz`, which needs no key, name no host. The log passes the DSN, and gets host and port, never the password.
"""

import errno
import os
import re
import socket
import ssl

import asyncpg

from app.db import dsn as names
from app.db.dsn import Host

_UNKNOWN_HOST = "unknown host name"

# The first match counts, so subclasses come before their base classes.
_CAUSES: tuple[tuple[type[Exception], str], ...] = (
    (
        ssl.SSLCertVerificationError,
        "the certificate of the database server cannot be verified: check the host and sslrootcert in DATABASE_URL",
    ),
    (ssl.SSLError, "the TLS connection to the database failed"),
    (socket.gaierror, _UNKNOWN_HOST),
    (FileNotFoundError, "the Unix socket of the database does not exist"),
    (TimeoutError, "the database did not answer in time, or all connections to it were in use"),
    (asyncpg.ClientConfigurationError, "DATABASE_URL is not a valid Postgres URL"),
    (asyncpg.CannotConnectNowError, "the database is starting or shutting down"),
    (asyncpg.TooManyConnectionsError, "the database has no free connection slot"),
    (asyncpg.InvalidAuthorizationSpecificationError, "the database rejects the role or password in DATABASE_URL"),
    (asyncpg.InvalidCatalogNameError, "the database server has no database of the name in DATABASE_URL"),
    (asyncpg.DiskFullError, "the disk of the database is full"),
    (asyncpg.LockNotAvailableError, "a lock in the database was not free in time"),
    (asyncpg.QueryCanceledError, "the statement was cancelled in the database"),
    (asyncpg.ReadOnlySQLTransactionError, "the database accepts no writes"),
    (asyncpg.DeadlockDetectedError, "the database ended a deadlock with another transaction"),
    (asyncpg.SerializationError, "the database could not order this transaction and another"),
    (asyncpg.OperatorInterventionError, "the database ended the connection"),
    (asyncpg.PostgresConnectionError, "the connection to the database broke"),
    (asyncpg.InterfaceError, "the connection to the database broke"),
    (asyncpg.InternalClientError, "the connection to the database broke"),
)
_BROKEN = (errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED)
_ERRNO = re.compile(r"\[Errno (\d+)\]")


def describe(error: BaseException, dsn: str | None = None) -> str:
    """The cause in words; with a DSN also where it was."""
    known = next((text for kind, text in _CAUSES if isinstance(error, kind)), None)
    cause = known or (_of_the_system(error) if isinstance(error, OSError) else _of_the_server(error))
    if cause == _UNKNOWN_HOST:
        return f"{cause} {_hosts(dsn)}" if dsn else "the host name of the database is unknown"
    return f"{cause} at {addresses(dsn)}" if dsn and addresses(dsn) else cause


def addresses(dsn: str) -> str:
    return ", ".join(map(_address, names.hosts(dsn)))


def _hosts(dsn: str) -> str:
    return ", ".join(place.host for place in names.hosts(dsn))


def _address(place: Host) -> str:
    if place.host.startswith("/"):
        return place.host
    return f"[{place.host}]:{place.port}" if ":" in place.host else f"{place.host}:{place.port}"


def _of_the_system(error: OSError) -> str:
    """For several addresses of one host asyncio raises one error, with a number only in its text."""
    found = _ERRNO.search(str(error))
    number = error.errno or (int(found[1]) if found else None)
    if number == errno.ECONNREFUSED:
        return "the database refuses connections"
    if number is None or number in _BROKEN:
        return "the connection to the database broke"
    return f"the database cannot be reached: {os.strerror(number)}"


def _of_the_server(error: BaseException) -> str:
    return f"the database reports an error (SQLSTATE {getattr(error, 'sqlstate', None) or 'unknown'})"
