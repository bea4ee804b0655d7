"""The Postgres of a run: durable, can be killed, stopped and restarted, and queried without
proxies."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg

from app.db import migrations
from app.db.embedded.server import EmbeddedPostgres
from tests.faults.failover.server import children_of

# Makes the database's clock settable for brokers. Only sessions that start later use these
# functions.
CLOCK = """
CREATE TABLE clock_jump (by interval NOT NULL);
INSERT INTO clock_jump VALUES ('0');
CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
    'SELECT pg_catalog.clock_timestamp() + (SELECT by FROM public.clock_jump)';
CREATE FUNCTION public.now() RETURNS timestamptz LANGUAGE sql STABLE AS
    'SELECT pg_catalog.now() + (SELECT by FROM public.clock_jump)';
ALTER DATABASE postgres SET search_path = public, pg_catalog;
"""
AUDIT_LOG = Path(__file__).with_name("audit_log.sql").read_text()
# Postgres detects a deadlock before the brokers' lock timeout (1.1 s), and logs it in English, so
# that it can be counted. Only commits that wait for the flush are flushed: commits of a session
# with synchronous_commit off are lost when the server is killed.
OPTIONS = {
    "max_connections": "100",
    "deadlock_timeout": "200ms",
    "lc_messages": "C",
    "wal_writer_delay": "10s",
    "wal_writer_flush_after": "1GB",
}


class Postgres:
    """A server.

    Start it from a thread that lives as long as the run: its end kills the server on Linux."""

    def __init__(self, folder: Path) -> None:
        self._server = EmbeddedPostgres(folder, options=OPTIONS)
        self.dsn = ""

    def start(self) -> None:
        self.dsn = self._server.start()

    def prepare(self, claim_function: str = "") -> None:
        """Creates the schema and the audit log, and replaces the function `claim_jobs`, if given."""
        migrations.upgrade(self.dsn)
        if claim_function:
            self.execute(claim_function)
        self.execute(CLOCK)
        self.execute(AUDIT_LOG)

    def stop(self) -> None:
        self.signal(signal.SIGCONT)
        self._end()

    def _end(self) -> None:
        self._server.stop()

    @property
    def _data(self) -> Path:
        return self._server.data

    @property
    def _logs(self) -> Path:
        return self._server.folder

    def deadlocks(self) -> int:
        """Counts deadlocks in the log of Postgres, because its counters start at zero again
        after a crash."""
        return sum(log.read_bytes().count(b"deadlock detected") for log in self._logs.glob("*.log*"))

    def restart(self) -> None:
        """Restarts the server after a kill, with crash recovery."""
        self._server.stop()
        self.start()

    @property
    def socket(self) -> str:
        query = parse_qs(urlsplit(self.dsn).query)
        return f"{query['host'][0]}/.s.PGSQL.{query['port'][0]}"

    def dsn_of_proxy(self, folder: Path) -> str:
        return f"postgresql://postgres@/postgres?host={folder}&port=5432"

    def signal(self, sign: signal.Signals) -> None:
        """Signals the postmaster first, so that it starts no new processes, then all of its
        children."""
        with suppress(OSError, ValueError, IndexError):
            postmaster = int((self._data / "postmaster.pid").read_text().split()[0])
            children = children_of(postmaster)
            for pid in (postmaster, *children):
                with suppress(ProcessLookupError):
                    os.kill(pid, sign)

    # Queries

    def rows(self, sql: str, *args: object) -> list[asyncpg.Record]:
        return asyncio.run(self._fetch(sql, *args))

    def value(self, sql: str, *args: object) -> Any:
        return self.rows(sql, *args)[0][0]

    def execute(self, sql: str) -> None:
        asyncio.run(self._execute(sql))

    @contextmanager
    def open_transactions(self, *statements: str, sessions: int = 1) -> Iterator[None]:
        """Opens sessions that have run the statements in a transaction and stay idle in it."""
        with asyncio.Runner() as runner:
            held = [runner.run(self._open_transaction(statements)) for _ in range(sessions)]
            try:
                yield
            finally:
                for connection in filter(None, held):
                    connection.terminate()

    async def _open_transaction(self, statements: tuple[str, ...]) -> "asyncpg.Connection[asyncpg.Record] | None":
        try:
            connection = await asyncpg.connect(self.dsn)
        except asyncpg.TooManyConnectionsError:
            return None
        for statement in ("BEGIN", *statements):
            await connection.execute(statement)
        return connection

    async def _fetch(self, sql: str, *args: object) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self.dsn)
        try:
            return await connection.fetch(sql, *args)
        finally:
            await connection.close()

    async def _execute(self, sql: str) -> None:
        connection = await asyncpg.connect(self.dsn)
        try:
            await connection.execute(sql)
        finally:
            await connection.close()
