"""A migrator that is killed (F4, F2): after every step, and in the middle of an index. The next one goes on as if nothing had been."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any

import pytest

from alembic import command
from app.db import migrations
from tests.change.migrators import Migrators, migrators, way_to
from tests.database import Loop, TestDatabase, create_empty_database
from tests.dump_schema import dump_of
from tests.migrations.test_in_company import Session

Eventually = Callable[[Callable[[], Any]], Any]

HOLDERS = (
    "FROM pg_locks JOIN pg_database ON oid = database WHERE locktype = 'advisory' AND datname = current_database()"
)
HELD = f"SELECT count(*) {HOLDERS}"
TERMINATED = f"SELECT pg_terminate_backend(pid) {HOLDERS}"
INVALID = "SELECT indexrelid::regclass::text AS name FROM pg_index WHERE NOT indisvalid"

# Everything but the indexes that are made outside of a transaction, and the table that says where we are.
SHAPE = """
SELECT attrelid::regclass::text || '.' || attname || ' ' || format_type(atttypid, atttypmod) || ' ' || attnotnull AS part
FROM pg_attribute
JOIN pg_class ON pg_class.oid = attrelid
WHERE relnamespace = 'public'::regnamespace AND attnum > 0 AND NOT relname = ANY ($1)
UNION ALL
SELECT proname || ' ' || md5(prosrc) || coalesce(proacl::text, '') FROM pg_proc WHERE pronamespace = 'public'::regnamespace
UNION ALL
SELECT relname || ' ' || coalesce(relacl::text, '') FROM pg_class WHERE relnamespace = 'public'::regnamespace AND NOT relname = ANY ($1)
UNION ALL
SELECT conname || ' ' || contype::text
FROM pg_constraint
WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text <> 'alembic_version'
ORDER BY part
"""


def revisions() -> list[str]:
    return sorted(file.name[:4] for file in (migrations.ROOT / "alembic" / "versions").glob("*.py"))


def besides() -> list[str]:
    files = (migrations.ROOT / "alembic" / "versions").glob("*.up.sql")
    concurrently = [
        name
        for file in files
        for name in re.findall(r"CREATE INDEX CONCURRENTLY IF NOT EXISTS (\w+)", file.read_text())
    ]
    return [*concurrently, "alembic_version", "alembic_version_pkc"]


def shape(database: TestDatabase) -> list[str]:
    return [row["part"] for row in database.rows(SHAPE, besides())]


def revision_of(database: TestDatabase) -> str | None:
    if database.value("SELECT to_regclass('alembic_version') IS NULL"):
        return None
    found: str | None = database.value("SELECT version_num FROM alembic_version")
    return found


@pytest.fixture(scope="module")
def forked() -> Iterator[Migrators]:
    with migrators() as started:
        yield started


@pytest.fixture
def empty(postgres: str, loop: Loop, request: pytest.FixtureRequest) -> Iterator[TestDatabase]:
    database = TestDatabase(create_empty_database(postgres, loop, request.node.name[:60]), loop)
    yield database
    database.close()


@pytest.fixture
def shapes(postgres: str, loop: Loop) -> dict[str | None, list[str]]:
    """What the database looks like at each revision, for a migrator that nobody disturbs."""
    database = TestDatabase(create_empty_database(postgres, loop, "shapes"), loop)
    found: dict[str | None, list[str]] = {None: shape(database)}
    for revision in revisions():
        command.upgrade(migrations.config(database.dsn), revision)
        found[revision] = shape(database)
    database.close()
    return found


def run_killed_after(steps: int, forked: Migrators, dsn: str) -> int:
    """How it ended. It is dead before anything more of it gets to Postgres."""
    known, pid = Event(), 0

    def kill() -> None:
        known.wait(30)
        os.kill(pid, signal.SIGKILL)

    with way_to(dsn, steps, kill) as way:
        pid = forked.start(way)
        known.set()
        return forked.wait()


def test_killed_after_every_step_no_revision_is_there_by_half_and_the_next_goes_on(
    empty: TestDatabase, shapes: dict[str | None, list[str]], forked: Migrators, eventually: Eventually
) -> None:
    """Each revision is killed after its first step, its second and so on, until it has been committed; then the next one."""
    at, steps, kills = None, 1, 0
    while (ended := run_killed_after(steps, forked, empty.dsn)) != 0:
        assert ended == -signal.SIGKILL
        eventually(
            lambda: empty.value(HELD) == 0
        )  # Postgres has done what it had heard of, and knows that nobody is there
        before, at = at, revision_of(empty)
        assert shape(empty) == shapes[at], (at, steps)
        kills, steps = kills + 1, steps + 1 if at == before else 1
    assert (at, empty.rows(INVALID)) == (migrations.head(), [])
    assert kills > 5 * len(revisions())
    assert dump_of(empty.dsn) == (migrations.ROOT / "alembic" / "schema.sql").read_text()


def test_an_index_that_was_left_behind_unusable_is_made_anew(
    empty: TestDatabase, forked: Migrators, eventually: Eventually
) -> None:
    """An index waits for the transactions that are older than itself. Here an operator loses patience."""
    command.upgrade(migrations.config(empty.dsn), "0002")
    with old_reader(empty):
        forked.start(empty.dsn)
        (unusable,) = eventually(lambda: empty.rows(INVALID))
        empty.execute(TERMINATED)
        assert forked.wait() > 0
        assert empty.rows(INVALID) == [unusable]
    assert run(forked, empty) == 0
    assert empty.rows(INVALID) == []
    assert dump_of(empty.dsn) == (migrations.ROOT / "alembic" / "schema.sql").read_text()


def test_an_index_whose_migrator_was_killed_is_finished_before_the_next_migrator_goes_on(
    empty: TestDatabase, forked: Migrators, eventually: Eventually
) -> None:
    command.upgrade(migrations.config(empty.dsn), "0002")
    with old_reader(empty):
        pid = forked.start(empty.dsn)
        eventually(lambda: empty.rows(INVALID))
        os.kill(pid, signal.SIGKILL)
        assert forked.wait() == -signal.SIGKILL
        assert empty.rows(INVALID) != []
    assert run(forked, empty) == 0
    assert empty.rows(INVALID) == []
    assert dump_of(empty.dsn) == (migrations.ROOT / "alembic" / "schema.sql").read_text()


@contextmanager
def old_reader(database: TestDatabase) -> Iterator[None]:
    reader = Session(database.dsn, database.loop)
    reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM jobs")
    yield
    reader.execute("COMMIT")
    reader.close()


def run(forked: Migrators, database: TestDatabase) -> int:
    forked.start(database.dsn)
    return forked.wait()
