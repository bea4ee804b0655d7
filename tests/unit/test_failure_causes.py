"""Causes of failed database calls in plain words: no class names; hosts and ports for operators
only."""

import errno
import socket

import asyncpg

from app.db.failure_causes import describe

DSN = "postgresql://user:hunter2@db.example:6432,other.example/x"
BOTH_ADDRESSES_REFUSED = (
    "Multiple exceptions: [Errno 111] Connect call failed ('::1', 1, 0, 0), "
    "[Errno 111] Connect call failed ('127.0.0.1', 1)"
)
CASES: list[tuple[Exception, str]] = [
    (
        ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('10.0.0.1', 5432)"),
        "the database refuses connections",
    ),
    (OSError(BOTH_ADDRESSES_REFUSED), "the database refuses connections"),
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


def test_cause_for_clients_contains_no_host() -> None:
    results = [(error, describe(error)) for error, _ in CASES]
    assert [pair for pair, expected in zip(results, CASES, strict=True) if pair != expected] == []


def test_cause_for_operators_contains_hosts_and_ports_but_no_password() -> None:
    assert describe(CASES[0][0], DSN) == "the database refuses connections at db.example:6432, other.example:5432"
    assert describe(socket.gaierror(-2, "no"), DSN) == "unknown host name db.example, other.example"
    assert describe(ConnectionRefusedError(errno.ECONNREFUSED, "no"), "postgresql://u@/x?host=/run/pg") == (
        "the database refuses connections at /run/pg"
    )
