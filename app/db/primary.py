"""Which server a new connection may lead to: one that takes writes, and that no other has been promoted over (R10).

The highest WAL timeline that this process has seen is kept for each cluster. A server behind it is an old primary that does not know yet
that it was replaced: what it accepts is lost. A refused server costs the call a 503 `not_done`; with several hosts in the DSN the best of
them is taken instead. A process that has just started knows no timeline yet, so it asks all hosts first.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import asyncpg
from asyncpg import Record

from app.db import dsn as names
from app.db import tls
from app.db.dsn import Host
from app.db.durability import durability_failures

Connection: TypeAlias = "asyncpg.Connection[Record]"

HOST_SECONDS = 1.5  # for one host of several: a dead one must not use up the time of a call, nor that of a question of the watchdog

# Any role may call these, on Postgres 15 to 18. The name of the current WAL file begins with the timeline, in hexadecimal digits;
# pg_control_checkpoint() would tell it too, but only from the first checkpoint after a promotion on.
_ASK = """
SELECT current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes,
       current_setting('synchronous_commit') AS synchronous_commit, current_setting('synchronous_standby_names') AS standby_names,
       pg_is_in_recovery() AS in_recovery,
       (SELECT system_identifier FROM pg_control_system()) AS cluster,
       CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END AS timeline
"""
_ASK_LESS = """
SELECT current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes,
       current_setting('synchronous_commit') AS synchronous_commit, current_setting('synchronous_standby_names') AS standby_names,
       pg_is_in_recovery() AS in_recovery, 0::bigint AS cluster, '0' AS timeline
"""
_NOT_TOLD = (asyncpg.InsufficientPrivilegeError, asyncpg.FeatureNotSupportedError, asyncpg.UndefinedFunctionError)
UNREACHABLE = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


class ServerRefused(ConnectionError):
    """We could connect, and will not: nothing was sent."""


class ServerIdentity(NamedTuple):
    """Which history of which cluster a primary writes."""

    cluster: int
    timeline: int


class PrimaryConnector:
    """`connect` is the pool's way to new connections; every one of them has been asked who it is."""

    def __init__(self, dsn: str, *, durable: bool = False, host_seconds: float = HOST_SECONDS) -> None:
        self.dsn = dsn
        self._durable = durable
        self._host_seconds = host_seconds
        places = names.hosts(dsn)
        self._places: Sequence[Host] = places if len(places) > 1 else ()
        self._last: Host | None = None
        self._highest: dict[int, int] = {}
        self._open: WeakKeyDictionary[Connection, ServerIdentity] = WeakKeyDictionary()
        self._tls: dict[str, Any] = tls.options(dsn)

    async def connect(self, _dsn: str | None = None, **options: Any) -> Connection:
        """Where the last one led to, if that is still the right place; otherwise the highest timeline of all hosts."""
        if not self._places:
            return (await self._connect(None, options))[0]
        if (last := self._last) is not None:
            try:
                return (await self._connect(last, options))[0]
            except UNREACHABLE:
                self._last = None
            except BaseException:  # whoever waited for it has lost patience: the next one asks all
                self._last = None
                raise
        return await self._connect_to_best(options)

    async def probe_other_hosts(self) -> None:
        """Learns of a promotion from the other hosts, as the one in use may not know of it. Then its connections end."""
        for place in self._places:
            if place != self._last:
                with suppress(*UNREACHABLE):
                    (await self._connect(place, {}))[0].terminate()

    def terminate(self, *, below: ServerIdentity | None = None) -> None:
        """Ends connections, all or those with an older timeline: what runs on them has an unknown outcome. Terminated and not
        cancelled, as a cancel request would also end a commit's wait for its standby, and leave it visible here alone."""
        for connection, identity in list(self._open.items()):
            if below is None or (identity.cluster == below.cluster and identity.timeline < below.timeline):
                connection.terminate()

    async def _connect_to_best(self, options: dict[str, Any]) -> Connection:
        tries = [asyncio.create_task(self._connect(place, options)) for place in self._places]
        try:
            await asyncio.wait(tries)
            places = dict(zip(tries, self._places, strict=True))
            found = [one for one in tries if one.exception() is None]
            if not found:
                raise _most_telling([error for one in tries if (error := one.exception())])
            best = max(found, key=lambda one: one.result()[1].timeline)
        except BaseException:
            _drop(tries)
            raise
        _drop([one for one in tries if one is not best])
        self._last = places[best]
        return best.result()[0]

    async def _connect(self, place: Host | None, options: dict[str, Any]) -> tuple[Connection, ServerIdentity]:
        where: dict[str, Any] = place._asdict() | {"timeout": self._host_seconds} if place else {}
        connection: Connection = await asyncpg.connect(self.dsn, **(options | where | self._tls))
        try:
            async with asyncio.timeout(self._host_seconds if place else None):  # one that lets us in and then hangs
                self._open[connection] = identity = self._admit(await _ask(connection))
        except BaseException:
            connection.terminate()
            raise
        return connection, identity

    def _admit(self, told: Record) -> ServerIdentity:
        if told["in_recovery"]:
            raise ServerRefused("the server is a standby: it takes no writes")
        if self._durable and (lost := list(durability_failures(dict(told)))):
            raise ServerRefused(f"the server is not durable: {'; '.join(lost)}")
        found = ServerIdentity(told["cluster"], int(told["timeline"], 16))
        highest = self._highest.get(found.cluster, 0)
        if found.timeline < highest:
            raise ServerRefused(
                f"the server is an old primary: it writes timeline {found.timeline}, another has reached {highest}"
            )
        self._highest[found.cluster] = found.timeline
        self.terminate(below=found)
        return found


async def _ask(connection: Connection) -> Record:
    """Where a provider keeps its WAL to itself, a standby can still be told from a primary."""
    try:
        told = await connection.fetchrow(_ASK)
    except _NOT_TOLD:
        told = await connection.fetchrow(_ASK_LESS)
    assert told is not None, "a SELECT without FROM has a row"
    return told


def _most_telling(errors: Sequence[BaseException]) -> BaseException:
    """Of several hosts: that one was refused says more than that another is away."""
    return next((error for error in errors if isinstance(error, ServerRefused)), errors[0])


def _drop(tries: Sequence["asyncio.Task[tuple[Connection, ServerIdentity]]"]) -> None:
    for one in tries:
        if not one.done():
            one.cancel()
        elif not one.cancelled() and one.exception() is None:
            one.result()[0].terminate()
