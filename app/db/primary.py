"""Connects to the primary: the one server that accepts writes and that no other server has
replaced.

    standby                          unusable: it accepts no writes
    timeline below the highest seen  unusable: a superseded primary, whose writes would be lost
    timeline above the highest seen  used, after a promotion: connections to older timelines are
                                     terminated
    otherwise                        used

The process remembers the highest WAL timeline that it has seen of each cluster. A server with a
lower timeline was replaced and does not know that yet. If the DSN names several hosts, the process
uses the host with the highest timeline. A call that finds only unusable servers fails with a 503
`not_done`. A process that has just started knows no timeline, so it connects to all hosts first.
See docs/reliability/rules.md#r10.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import asyncpg
from asyncpg import Record

from app.db import tls
from app.db.dsn import Host, hosts
from app.db.durability import DURABILITY_COLUMNS, durability_failures

Connection: TypeAlias = "asyncpg.Connection[Record]"

# Timeout for each host of a DSN with several hosts, so that a dead host uses up neither the time of
# a call nor that of a watchdog probe.
HOST_SECONDS = 1.5

# Any role may call these functions, on Postgres 15 to 18. The name of the current WAL file begins
# with the timeline in hexadecimal digits. pg_control_checkpoint() returns the timeline, too, but
# after a promotion it shows the new timeline only from the first checkpoint on.
_IDENTIFY = f"""
SELECT {DURABILITY_COLUMNS},
       pg_is_in_recovery() AS in_recovery,
       (SELECT system_identifier FROM pg_control_system()) AS cluster,
       CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END AS timeline
"""  # noqa: S608 - it contains only a constant
_IDENTIFY_WITHOUT_WAL = f"""
SELECT {DURABILITY_COLUMNS},
       pg_is_in_recovery() AS in_recovery, 0::bigint AS cluster, '0' AS timeline
"""
_WAL_HIDDEN = (asyncpg.InsufficientPrivilegeError, asyncpg.FeatureNotSupportedError, asyncpg.UndefinedFunctionError)
UNREACHABLE = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


class UnusableServer(ConnectionError):
    """The broker must not use the server: a standby, a superseded primary, a server that is not
    durable, or a silent server. The call's statement was not sent."""


class ServerIdentity(NamedTuple):
    """The cluster of a primary, and the timeline that it writes."""

    cluster: int
    timeline: int


class PrimaryConnector:
    """Opens connections, and checks that each leads to the primary."""

    def __init__(self, dsn: str, *, durable: bool = False, host_seconds: float = HOST_SECONDS) -> None:
        self.dsn = dsn
        self._durable = durable
        self._host_seconds = host_seconds
        dsn_hosts = hosts(dsn)
        self._hosts: Sequence[Host] = dsn_hosts if len(dsn_hosts) > 1 else ()
        self._last_host: Host | None = None
        self._highest_timelines: dict[int, int] = {}
        self._open: WeakKeyDictionary[Connection, ServerIdentity] = WeakKeyDictionary()
        self._tls: dict[str, Any] = tls.options(dsn)

    async def connect(self, **options: Any) -> Connection:
        """Opens a connection to the host of the last connection. If that fails, connects to all
        hosts and uses the host with the highest timeline."""
        if not self._hosts:
            return (await self._connect(None, options))[0]
        if (last_host := self._last_host) is not None:
            try:
                return (await self._connect(last_host, options))[0]
            except UNREACHABLE:
                self._last_host = None
            except BaseException:  # the timeout of the call has expired: the next call tries all hosts
                self._last_host = None
                raise
        return await self._connect_to_best(options)

    async def probe_other_hosts(self) -> None:
        """Connects to the other hosts to find out whether one of them was promoted, because the
        host in use may not know that. If so, terminates the connections to the host in use."""
        for host in self._hosts:
            if host != self._last_host:
                with suppress(*UNREACHABLE):
                    (await self._connect(host, {}))[0].terminate()

    def terminate(self, *, below: ServerIdentity | None = None) -> None:
        """Terminates all connections or, with `below`, only those to servers of the same cluster
        with a lower timeline. The outcome of running writes is `unknown`.

        Sends no cancel request, which would also end a commit's wait for its standby. The commit
        would then be visible, but on this server only.
        """
        for connection, identity in list(self._open.items()):
            if below is None or (identity.cluster == below.cluster and identity.timeline < below.timeline):
                connection.terminate()

    async def _connect_to_best(self, options: dict[str, Any]) -> Connection:
        """Connects to all hosts at once, and keeps only the connection to the server with the
        highest timeline."""
        attempts = [asyncio.create_task(self._connect(host, options)) for host in self._hosts]
        try:
            await asyncio.wait(attempts)
            hosts_by_attempt = dict(zip(attempts, self._hosts, strict=True))
            connected = [attempt for attempt in attempts if attempt.exception() is None]
            if not connected:
                raise _best_explanation([error for attempt in attempts if (error := attempt.exception())])
            best = max(connected, key=lambda attempt: attempt.result()[1].timeline)
        except BaseException:
            _discard(attempts)
            raise
        _discard([attempt for attempt in attempts if attempt is not best])
        self._last_host = hosts_by_attempt[best]
        return best.result()[0]

    async def _connect(self, host: Host | None, options: dict[str, Any]) -> tuple[Connection, ServerIdentity]:
        """Connects to a server and checks the server. Returns the connection and the identity of
        the server. `host` is one of several hosts, or None if the DSN names at most one host."""
        address: dict[str, Any] = host._asdict() | {"timeout": self._host_seconds} if host else {}
        connection: Connection = await asyncpg.connect(self.dsn, **(options | address | self._tls))
        try:
            # A second timeout, for a server that accepts the connection and then hangs.
            async with asyncio.timeout(self._host_seconds if host else None):
                self._open[connection] = identity = self._check(await _identify(connection))
        except BaseException:
            connection.terminate()
            raise
        return connection, identity

    def _check(self, server: Record) -> ServerIdentity:
        """Raises UnusableServer if the broker must not use the server. Otherwise returns the
        identity of the server, and terminates connections to servers of the same cluster with a
        lower timeline."""
        if server["in_recovery"]:
            raise UnusableServer("the server is a standby: it accepts no writes")
        if self._durable and (failures := list(durability_failures(dict(server)))):
            raise UnusableServer(f"the server is not durable: {'; '.join(failures)}")
        identity = ServerIdentity(server["cluster"], int(server["timeline"], 16))
        highest = self._highest_timelines.get(identity.cluster, 0)
        if identity.timeline < highest:
            raise UnusableServer(
                f"the server is a superseded primary: its timeline is {identity.timeline}, "
                f"another server has reached {highest}"
            )
        self._highest_timelines[identity.cluster] = identity.timeline
        self.terminate(below=identity)
        return identity


async def _identify(connection: Connection) -> Record:
    """Reads the cluster, the timeline and the durability settings of a server, and whether it is a
    standby. If a provider hides the WAL functions, cluster and timeline are 0: the broker then
    still detects a standby, but not a superseded primary."""
    try:
        server = await connection.fetchrow(_IDENTIFY)
    except _WAL_HIDDEN:
        server = await connection.fetchrow(_IDENTIFY_WITHOUT_WAL)
    assert server is not None, "a SELECT without FROM has a row"
    return server


def _best_explanation(errors: Sequence[BaseException]) -> BaseException:
    """Chooses the error to report if no host can be used. Prefers an UnusableServer, because its
    text says more than a failed connection to another host."""
    return next((error for error in errors if isinstance(error, UnusableServer)), errors[0])


def _discard(attempts: Sequence["asyncio.Task[tuple[Connection, ServerIdentity]]"]) -> None:
    """Discards attempts to connect: cancels running attempts, and terminates the connections of
    successful attempts."""
    for attempt in attempts:
        if not attempt.done():
            attempt.cancel()
        elif not attempt.cancelled() and attempt.exception() is None:
            attempt.result()[0].terminate()


@asynccontextmanager
async def single_connection(dsn: str, **settings: str) -> AsyncIterator[Connection]:
    """Opens a connection to the primary for a command, and closes it after the `with` block."""
    connection = await PrimaryConnector(dsn).connect(timeout=5, server_settings=settings)
    try:
        yield connection
    finally:
        await connection.close()
