"""The cause of a failed database call is in plain words: no class name, no host for callers, host and port for operators."""

import errno
import socket

import asyncpg

from app.db.failure_causes import describe

DSN = "postgresql://user:hunter2@db.example:6432,other.example/x"
BOTH = "Multiple exceptions: [Errno 111] Connect call failed ('::1', 1, 0, 0), [Errno 111] Connect call failed ('127.0.0.1', 1)"
CASES: list[tuple[Exception, str]] = [
    (
        ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('10.0.0.1', 5432)"),
        "the database refuses connections",
    ),
    (OSError(BOTH), "the database refuses connections"),
    (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), "the connection to the database broke"),
    (ConnectionError("unexpected connection_lost() call"), "the connection to the database broke"),
    (
        OSError(errno.EHOSTUNREACH, "Connect call failed ('10.0.0.1', 5432)"),
        "the database cannot be reached: No route to host",
    ),
    (socket.gaierror(-2, "Name or service not known"), "the host name of the database is unknown"),
    (TimeoutError(), "the database did not answer in time, or all connections to it were in use"),
    (asyncpg.CannotConnectNowError("the database system is starting up"), "the database is starting or shutting down"),
    (asyncpg.InvalidPasswordError("no"), "the database rejects the role or password in DATABASE_URL"),
    (asyncpg.AdminShutdownError("terminating connection"), "the database ended the connection"),
    (asyncpg.QueryCanceledError("canceling statement"), "the statement was cancelled in the database"),
    (asyncpg.ConnectionDoesNotExistError("connection was closed"), "the connection to the database broke"),
    (asyncpg.InterfaceError("the connections have been closed"), "the connection to the database broke"),
    (asyncpg.OutOfMemoryError("out of memory"), "the database reports an error (SQLSTATE 53200)"),
]


def test_cause_for_callers_names_no_host() -> None:
    found = [(error, describe(error)) for error, _ in CASES]
    assert [pair for pair, expected in zip(found, CASES, strict=True) if pair != expected] == []


def test_cause_for_operators_names_hosts_and_ports_without_the_password() -> None:
    assert describe(CASES[0][0], DSN) == "the database refuses connections at db.example:6432, other.example:5432"
    assert describe(socket.gaierror(-2, "no"), DSN) == "unknown host name db.example, other.example"
    assert describe(ConnectionRefusedError(errno.ECONNREFUSED, "no"), "postgresql://u@/x?host=/run/pg") == (
        "the database refuses connections at /run/pg"
    )
