"""Describes why a database call failed, for callers and for operators. No I/O.

Texts for responses contain no host, because any caller can get a 503, and `/readyz` needs no API
key. Texts for the log are made with the DSN. They contain host and port, but never the password.
"""

import errno
import os
import re
import socket
import ssl

import asyncpg

from app.db.dsn import Host, hosts
from app.db.tls import TlsError

_UNKNOWN_HOST = "unknown host name"
_BROKEN_CONNECTION = "the connection to the database broke"

# The first match counts, so subclasses come before their base classes.
_CAUSES: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...] = (
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
    (asyncpg.LockNotAvailableError, "a lock in the database did not become free in time"),
    (asyncpg.QueryCanceledError, "the statement was cancelled in the database"),
    (asyncpg.ReadOnlySQLTransactionError, "the database accepts no writes"),
    (asyncpg.DeadlockDetectedError, "the database ended a deadlock with another transaction"),
    (asyncpg.SerializationError, "the transaction conflicted with another (serialization failure)"),
    (asyncpg.OperatorInterventionError, "the database ended the connection"),
    ((asyncpg.PostgresConnectionError, asyncpg.InterfaceError, asyncpg.InternalClientError), _BROKEN_CONNECTION),
)
_BROKEN = (errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED)
_ERRNO = re.compile(r"\[Errno (\d+)\]")


def describe(error: BaseException, dsn: str | None = None) -> str:
    """Describes why the call failed. With a DSN, the text also contains the hosts of the DSN, or
    the TLS option that cannot be used."""
    if dsn and isinstance(error, TlsError):
        return str(error)
    known = next((text for kinds, text in _CAUSES if isinstance(error, kinds)), None)
    cause = known or (_describe_os_error(error) if isinstance(error, OSError) else _describe_server_error(error))
    if cause == _UNKNOWN_HOST:
        return f"{cause} {_host_names(dsn)}" if dsn else "the host name of the database is unknown"
    return f"{cause} at {addresses(dsn)}" if dsn and addresses(dsn) else cause


def addresses(dsn: str) -> str:
    """Returns the hosts of the DSN with their ports, separated by commas."""
    return ", ".join(map(_address, hosts(dsn)))


def _host_names(dsn: str) -> str:
    return ", ".join(host.host for host in hosts(dsn))


def _address(host: Host) -> str:
    if host.host.startswith("/"):
        return host.host
    return f"[{host.host}]:{host.port}" if ":" in host.host else f"{host.host}:{host.port}"


def _describe_os_error(error: OSError) -> str:
    """Describes an error by its errno. Also searches the text for the errno, because asyncio raises
    an error without `errno` if a host has several addresses."""
    match = _ERRNO.search(str(error))
    number = error.errno or (int(match[1]) if match else None)
    if number == errno.ECONNREFUSED:
        return "the database refuses connections"
    if number is None or number in _BROKEN:
        return _BROKEN_CONNECTION
    return f"the database cannot be reached: {os.strerror(number)}"


def _describe_server_error(error: BaseException) -> str:
    return f"the database reports an error (SQLSTATE {getattr(error, 'sqlstate', None) or 'unknown'})"
