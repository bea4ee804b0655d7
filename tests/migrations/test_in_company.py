"""Migrators among others: two at once, one behind a long reader, one killed half way."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import asyncpg

from app.db import migrations
from tests.conftest import wait_until
from tests.database import Loop, TestDatabase
from tests.dump_schema import dump_of

AT = "SELECT version_num FROM alembic_version"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
A_LIMIT = "SET statement_timeout = '30s'"  # only ends a test that would hang


def migrator(dsn: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "app", "migrate"], env=os.environ | {"DATABASE_URL": dsn}, stdout=subprocess.DEVNULL
    )


class Session:
    """A connection that somebody else holds."""

    def __init__(self, dsn: str, loop: Loop) -> None:
        self._loop = loop
        self._connection: Any = loop.run(asyncpg.connect(dsn))

    def execute(self, sql: str) -> None:
        self._loop.run(self._connection.execute(sql))

    def close(self) -> None:
        self._loop.run(self._connection.close())


def test_two_deploys_at_once_both_succeed(blank: TestDatabase) -> None:
    both = [migrator(blank.dsn), migrator(blank.dsn)]
    assert [process.wait(120) for process in both] == [0, 0]
    assert blank.value(AT) == migrations.head()
    assert dump_of(blank.dsn) == (migrations.ROOT / "alembic" / "schema.sql").read_text()


def test_a_migrator_behind_a_long_reader_lets_claims_through_and_succeeds_in_the_end(blank: TestDatabase) -> None:
    """The way down stands for any migration that needs all of `jobs` for itself."""
    migrations.upgrade(blank.dsn)
    reader, worker = Session(blank.dsn, blank.loop), Session(blank.dsn, blank.loop)
    reader.execute("BEGIN; SELECT count(*) FROM jobs")
    with ThreadPoolExecutor() as background:
        migrating = background.submit(migrations.downgrade, blank.dsn, "base")
        wait_until(lambda: blank.value(WAITING) == 1)
        worker.execute(A_LIMIT)
        worker.execute(
            "SELECT id FROM jobs FOR UPDATE SKIP LOCKED"
        )  # in the queue behind the migrator, which gives up its place
        assert not migrating.done()
        reader.execute("COMMIT")
        migrating.result(120)
    assert blank.value("SELECT to_regclass('jobs') IS NULL")
    reader.close()
    worker.close()


def test_a_migrator_killed_half_way_leaves_nothing_in_the_way_of_the_next(blank: TestDatabase) -> None:
    other = Session(blank.dsn, blank.loop)
    other.execute(
        "BEGIN; CREATE TABLE stat_times (lane int)"
    )  # the last table: the migrator has made all others when it comes here
    killed = migrator(blank.dsn)
    wait_until(lambda: blank.value(WAITING) == 1)
    killed.kill()
    killed.wait(30)
    other.execute("ROLLBACK")
    other.close()
    assert migrator(blank.dsn).wait(120) == 0
    assert dump_of(blank.dsn) == (migrations.ROOT / "alembic" / "schema.sql").read_text()
