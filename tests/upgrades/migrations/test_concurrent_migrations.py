"""Migrators beside other sessions: two at once, one behind a long reader, one killed half way."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import asyncpg

from app.db import migrations
from tests.conftest import wait_until
from tests.database import Loop, TestDatabase
from tests.tools.dump_schema import dump_of

CURRENT_REVISION = "SELECT version_num FROM alembic_version"
WAITING_FOR_LOCK = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)
STATEMENT_TIMEOUT = "SET statement_timeout = '30s'"  # only ends a test that would hang


def migrator(dsn: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "app", "migrate"], env=os.environ | {"DATABASE_URL": dsn}, stdout=subprocess.DEVNULL
    )


class Session:
    """A session of another client."""

    def __init__(self, dsn: str, loop: Loop) -> None:
        self._loop = loop
        self._connection: Any = loop.run(asyncpg.connect(dsn))

    def execute(self, sql: str) -> None:
        self._loop.run(self._connection.execute(sql))

    def close(self) -> None:
        self._loop.run(self._connection.close())


def test_two_concurrent_migrations_both_succeed(empty_database: TestDatabase) -> None:
    processes = [migrator(empty_database.dsn), migrator(empty_database.dsn)]
    assert [process.wait(120) for process in processes] == [0, 0]
    assert empty_database.value(CURRENT_REVISION) == migrations.head()
    assert dump_of(empty_database.dsn) == (migrations.ROOT / "alembic" / "schema.sql").read_text()


def test_migrator_behind_a_long_reader_lets_claims_pass_and_finally_succeeds(empty_database: TestDatabase) -> None:
    """The downgrade stands for any migration that needs an exclusive lock on `jobs`."""
    migrations.upgrade(empty_database.dsn)
    reader, worker = Session(empty_database.dsn, empty_database.loop), Session(empty_database.dsn, empty_database.loop)
    reader.execute("BEGIN; SELECT count(*) FROM jobs")
    with ThreadPoolExecutor() as background:
        migrating = background.submit(migrations.downgrade, empty_database.dsn, "base")
        wait_until(lambda: empty_database.value(WAITING_FOR_LOCK) == 1)
        worker.execute(STATEMENT_TIMEOUT)
        # Waits in the lock queue behind the migrator, until the migrator's lock_timeout ends its
        # wait.
        worker.execute("SELECT id FROM jobs FOR UPDATE SKIP LOCKED")
        assert not migrating.done()
        reader.execute("COMMIT")
        migrating.result(120)
    assert empty_database.value("SELECT to_regclass('jobs') IS NULL")
    reader.close()
    worker.close()


def test_killed_migrator_does_not_block_the_next_one(empty_database: TestDatabase) -> None:
    other = Session(empty_database.dsn, empty_database.loop)
    # stat_durations is the last table: the migrator has created all others when it waits for this one.
    other.execute("BEGIN; CREATE TABLE stat_durations (lane int)")
    killed = migrator(empty_database.dsn)
    wait_until(lambda: empty_database.value(WAITING_FOR_LOCK) == 1)
    killed.kill()
    killed.wait(30)
    other.execute("ROLLBACK")
    other.close()
    assert migrator(empty_database.dsn).wait(120) == 0
    assert dump_of(empty_database.dsn) == (migrations.ROOT / "alembic" / "schema.sql").read_text()
