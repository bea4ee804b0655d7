"""The test database: one server per run (fsync off), copied from a migrated template.

The template is named after the hash of the schema. Tests delete all rows before they start."""

import asyncio
import hashlib
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import asyncpg

from app.broker import build_broker
from app.db import migrations
from app.db.embedded.server import EmbeddedPostgres
from app.settings import Settings
from tests.partitioned import partition_by_lane

T = TypeVar("T")

# Queues are not deleted, because brokers cache them. Each test uses a queue of its own.
EMPTIED = (
    *(
        "jobs",
        "ready_spans",
        "lease_checks",
        "finished_jobs",
        "dead_letters",
        "deduplication_keys",
        "rate_limit_usage",
        "group_cooldowns",
        "dependents",
        "finished_parents",
        "schedules",
        "poll_history",
        "workers",
    ),
    *("stat_deltas", "stat_totals", "stat_rates", "stat_durations"),
)
TABLES_WITH_ROWS = " UNION ALL ".join(f"SELECT '{table}' WHERE EXISTS (SELECT FROM {table})" for table in EMPTIED)
DELETE_UNLOCKED = """
WITH unlocked AS MATERIALIZED (SELECT tableoid, ctid FROM {table} FOR UPDATE SKIP LOCKED)
DELETE FROM {table}
USING unlocked
WHERE {table}.tableoid = unlocked.tableoid AND {table}.ctid = unlocked.ctid
"""


class Loop:
    """An event loop in a thread, for tests that are not async themselves."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="test loop", daemon=True).start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(120)


class TestDatabase:
    """Runs SQL from a test: reads tables behind the API, and moves time by moving rows."""

    __test__ = False

    def __init__(self, dsn: str, loop: Loop) -> None:
        self.dsn = dsn
        self.loop = loop
        self._pool: Any = loop.run(self._open())

    async def _open(self) -> Any:
        return await asyncpg.create_pool(self.dsn, min_size=1, max_size=5)

    def rows(self, sql: str, *args: object) -> list[asyncpg.Record]:
        return self.loop.run(self._pool.fetch(sql, *args))

    def row(self, sql: str, *args: object) -> asyncpg.Record:
        row: asyncpg.Record | None = self.loop.run(self._pool.fetchrow(sql, *args))
        assert row is not None
        return row

    def value(self, sql: str, *args: object) -> Any:
        return self.loop.run(self._pool.fetchval(sql, *args))

    def execute(self, sql: str, *args: object) -> str:
        return str(self.loop.run(self._pool.execute(sql, *args)))

    def empty(self, seconds: float = 60) -> None:
        """Deletes all rows while brokers run on the database.

        A delete skips rows that another transaction has locked. So it never waits for a row and
        cannot be part of a deadlock, in whatever order the other transaction takes its locks. It is
        repeated until one snapshot shows no row in any table.
        """
        deadline = time.monotonic() + seconds
        while tables := [row[0] for row in self.rows(TABLES_WITH_ROWS)]:
            assert time.monotonic() < deadline, f"a transaction keeps rows locked in {', '.join(tables)}"
            for table in tables:
                self.execute(DELETE_UNLOCKED.format(table=table))

    def age(self, job_id: str, seconds: float) -> None:
        """Moves all times of a job that is not finished `seconds` into the past."""
        self.execute(
            """UPDATE jobs SET run_at = run_at - make_interval(secs => $2), started_at =
            started_at - make_interval(secs => $2), lease_expires_at = lease_expires_at -
            make_interval(secs => $2) WHERE id = $1
            """,
            job_id,
            seconds,
        )
        self.execute(
            "UPDATE lease_checks SET check_at = check_at - make_interval(secs => $2) WHERE job_ids @> ARRAY[$1::uuid]",
            job_id,
            seconds,
        )

    def cover_ready_jobs(self) -> None:
        """Inserts ready spans, for jobs that a test has made ready by SQL of its own."""
        self.execute(
            "INSERT INTO ready_spans SELECT lane, priority, id, id FROM jobs WHERE state = 'ready' ORDER BY id"
        )

    def make_checks_due(self) -> None:
        """Makes all lease checks due, for leases that a test has made expire by SQL of its own."""
        self.execute("UPDATE lease_checks SET check_at = now() - interval '1 second'")

    @contextmanager
    def uncommitted(self, sql: str, *args: object) -> Iterator[Callable[[str], str]]:
        """Runs a statement in a transaction that stays open until the block ends, like another
        process.

        Yields a function that runs another statement in that transaction."""
        connection = self.loop.run(asyncpg.connect(self.dsn))
        try:
            self.loop.run(connection.execute("BEGIN"))
            self.loop.run(connection.execute(sql, *args))
            yield lambda statement: self.loop.run(connection.execute(statement))
        finally:
            self.loop.run(connection.close())

    @contextmanager
    def lane_locked(self, queue: str) -> Iterator[None]:
        """Holds the lane lock, like a claim that does not end.

        The queue has one lane, and its lock row exists after the first claim under a limit."""
        with self.uncommitted(
            "SELECT FROM lane_locks WHERE lane = (SELECT id * 256 FROM queues WHERE name = $1) FOR UPDATE", queue
        ):
            yield

    @contextmanager
    def leading(self, service: str) -> Iterator[None]:
        """Makes this test the leader of a background service, so that no broker runs it.

        A broker that led before notices this when it renews its lease: for services that run every
        second, after at most 5 s."""
        assert service in leader_only_services(), f"{service} is none of {', '.join(leader_only_services())}"
        self.execute(
            """
            INSERT INTO leaders (service, holder, held_until)
            VALUES ($1, gen_random_uuid(), now() + interval '1 hour')
            ON CONFLICT (service) DO UPDATE
            SET holder = excluded.holder, held_until = excluded.held_until
            """,
            service,
        )
        yield
        self.execute("DELETE FROM leaders WHERE service = $1", service)

    def instant(self, seconds: float) -> str:
        """Returns the time `seconds` from now in the format of the API."""
        time_: datetime = self.value("SELECT now() + make_interval(secs => $1)", float(seconds))
        return time_.isoformat().replace("+00:00", "Z")

    def close(self) -> None:
        self.loop.run(self._pool.close())


@cache
def leader_only_services() -> list[str]:
    """The names of the services that run only in the leader, from the table in `build_broker`.

    The broker is built, but not started."""
    background = build_broker(Settings.model_construct(), "postgresql://127.0.0.1/none").background
    return [service.name for service in background if service.leader_only]


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Runs a server for this test run. Its data need not survive a crash, so nothing is flushed."""
    options = {
        "fsync": "off",
        "synchronous_commit": "off",
        "full_page_writes": "off",
        "autovacuum": "off",
        "max_connections": "200",
    }
    with EmbeddedPostgres(folder, options=options) as dsn:
        yield dsn


def create_database(dsn: str, loop: Loop, name: str, *, partitioned: bool = False) -> str:
    """Creates a migrated database from the template.

    If `partitioned`, its tables with lanes are partitioned by lane."""
    template = f"template_{_schema_hash()}"
    create_empty_database(dsn, loop, template)
    migrations.upgrade(in_database(dsn, template))
    if partitioned:
        loop.run(copy_database(dsn, f"{template}_partitioned", template, then=partition_by_lane))
        template = f"{template}_partitioned"
    loop.run(copy_database(dsn, name, template))
    return in_database(dsn, name)


def create_empty_database(dsn: str, loop: Loop, name: str) -> str:
    loop.run(copy_database(dsn, name, "template1"))
    return in_database(dsn, name)


async def copy_database(
    dsn: str, name: str, template: str, then: Callable[[str], Awaitable[None]] | None = None
) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        if not await connection.fetchval("SELECT true FROM pg_database WHERE datname = $1", name):
            await connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
            await then(in_database(dsn, name)) if then else None
    finally:
        await connection.close()


def in_database(dsn: str, name: str) -> str:
    return dsn.replace("/postgres?", f"/{name}?")


def _schema_hash() -> str:
    files = sorted((migrations.ROOT / "alembic" / "versions").glob("*.sql"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
