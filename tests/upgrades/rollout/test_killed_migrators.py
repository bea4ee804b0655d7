"""Migrators that are killed after every step, and while they build an index: the next one
continues.

Faults: docs/reliability/faults.md#f2, #f4."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from alembic import command
from app.db import migrations
from tests.database import Loop, TestDatabase, create_empty_database
from tests.tools.dump_schema import dump_of
from tests.upgrades.later_revisions import COLUMN, later_revisions
from tests.upgrades.migrations.test_concurrent_migrations import Session
from tests.upgrades.rollout.killable_migrators import Migrators, counting_proxy, migrators

Eventually = Callable[[Callable[[], Any]], Any]

LOCK_HOLDERS = (
    "FROM pg_locks JOIN pg_database ON oid = database WHERE locktype = 'advisory' AND datname = current_database()"
)
COUNT_LOCKS = f"SELECT count(*) {LOCK_HOLDERS}"
TERMINATE_HOLDERS = f"SELECT pg_terminate_backend(pid) {LOCK_HOLDERS}"
INVALID_INDEXES = "SELECT indexrelid::regclass::text AS name FROM pg_index WHERE NOT indisvalid"

# All parts of the schema except indexes built outside a transaction and the table of the revision.
SCHEMA_PARTS = """
SELECT
    attrelid::regclass::text || '.' || attname || ' ' || format_type(atttypid, atttypmod) || ' ' || attnotnull AS part
FROM pg_attribute
JOIN pg_class ON pg_class.oid = attrelid
WHERE relnamespace = 'public'::regnamespace AND attnum > 0 AND NOT relname = ANY ($1)
UNION ALL
SELECT proname || ' ' || md5(prosrc) || coalesce(proacl::text, '')
FROM pg_proc
WHERE pronamespace = 'public'::regnamespace
UNION ALL
SELECT relname || ' ' || coalesce(relacl::text, '')
FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND NOT relname = ANY ($1)
UNION ALL
SELECT conname || ' ' || contype::text
FROM pg_constraint
WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text <> 'alembic_version'
ORDER BY part
"""


def revisions() -> list[str]:
    return sorted(file.name[:4] for file in (migrations.ROOT / "alembic" / "versions").glob("*.py"))


def excluded_relations() -> list[str]:
    files = (migrations.ROOT / "alembic" / "versions").glob("*.up.sql")
    concurrently = [
        name
        for file in files
        for name in re.findall(r"CREATE INDEX CONCURRENTLY IF NOT EXISTS (\w+)", file.read_text())
    ]
    return [*concurrently, "alembic_version", "alembic_version_pkc"]


def schema_parts(database: TestDatabase) -> list[str]:
    return [row["part"] for row in database.rows(SCHEMA_PARTS, excluded_relations())]


def current_revision(database: TestDatabase) -> str | None:
    if database.value("SELECT to_regclass('alembic_version') IS NULL"):
        return None
    revision: str | None = database.value("SELECT version_num FROM alembic_version")
    return revision


@pytest.fixture(scope="module", autouse=True)
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of migrations that include some after the baseline."""
    with later_revisions(tmp_path_factory.mktemp("migrations")) as folder:
        yield folder


@pytest.fixture(scope="module")
def forked_migrators(root: Path) -> Iterator[Migrators]:
    with migrators(root) as started:
        yield started


@pytest.fixture(scope="module")
def expected_schema(postgres: str, loop: Loop, root: Path) -> str:
    """The dump of the schema after undisturbed migrations."""
    dsn = create_empty_database(postgres, loop, "expected_schema")
    migrations.upgrade(dsn)
    return dump_of(dsn)


@pytest.fixture
def empty_database(postgres: str, loop: Loop, request: pytest.FixtureRequest) -> Iterator[TestDatabase]:
    database = TestDatabase(create_empty_database(postgres, loop, request.node.name[:60]), loop)
    yield database
    database.close()


@pytest.fixture
def parts_by_revision(postgres: str, loop: Loop) -> dict[str | None, list[str]]:
    """Returns the parts of the schema at each revision, after undisturbed migrations."""
    database = TestDatabase(create_empty_database(postgres, loop, "parts_by_revision"), loop)
    parts: dict[str | None, list[str]] = {None: schema_parts(database)}
    for revision in revisions():
        command.upgrade(migrations.config(database.dsn), revision)
        parts[revision] = schema_parts(database)
    database.close()
    return parts


def run_killed_after(steps: int, forked_migrators: Migrators, dsn: str) -> int:
    """Kills a migrator after `steps` steps; nothing more of it reaches Postgres.

    Returns its status."""
    pid_is_known, pid = Event(), 0

    def kill() -> None:
        pid_is_known.wait(30)
        os.kill(pid, signal.SIGKILL)

    with counting_proxy(dsn, steps, kill) as proxy_dsn:
        pid = forked_migrators.start(proxy_dsn)
        pid_is_known.set()
        return forked_migrators.wait()


def test_migrator_killed_after_any_step_leaves_whole_revisions_and_the_next_continues(
    empty_database: TestDatabase,
    parts_by_revision: dict[str | None, list[str]],
    forked_migrators: Migrators,
    expected_schema: str,
    eventually: Eventually,
) -> None:
    """Kills the migration of each revision after its first step, its second step and so on,
    until the revision is committed; then the next revision."""
    revision, steps, kills = None, 1, 0
    while (status := run_killed_after(steps, forked_migrators, empty_database.dsn)) != 0:
        assert status == -signal.SIGKILL
        # Postgres has run the statements that it received, and has noticed the closed connection.
        eventually(lambda: empty_database.value(COUNT_LOCKS) == 0)
        before, revision = revision, current_revision(empty_database)
        assert schema_parts(empty_database) == parts_by_revision[revision], (revision, steps)
        kills, steps = kills + 1, steps + 1 if revision == before else 1
    assert (revision, empty_database.rows(INVALID_INDEXES)) == (migrations.head(), [])
    assert kills > 5 * len(revisions())
    assert dump_of(empty_database.dsn) == expected_schema


def test_next_migrator_rebuilds_an_invalid_index(
    empty_database: TestDatabase, forked_migrators: Migrators, expected_schema: str, eventually: Eventually
) -> None:
    """Building an index waits for older transactions.

    Here an operator terminates the migrator's session."""
    command.upgrade(migrations.config(empty_database.dsn), COLUMN)
    with old_reader(empty_database):
        forked_migrators.start(empty_database.dsn)
        (invalid,) = eventually(lambda: empty_database.rows(INVALID_INDEXES))
        empty_database.execute(TERMINATE_HOLDERS)
        assert forked_migrators.wait() > 0
        assert empty_database.rows(INVALID_INDEXES) == [invalid]
    assert run(forked_migrators, empty_database) == 0
    assert empty_database.rows(INVALID_INDEXES) == []
    assert dump_of(empty_database.dsn) == expected_schema


def test_index_of_a_killed_migrator_is_valid_after_the_next_migration(
    empty_database: TestDatabase, forked_migrators: Migrators, expected_schema: str, eventually: Eventually
) -> None:
    command.upgrade(migrations.config(empty_database.dsn), COLUMN)
    with old_reader(empty_database):
        pid = forked_migrators.start(empty_database.dsn)
        eventually(lambda: empty_database.rows(INVALID_INDEXES))
        os.kill(pid, signal.SIGKILL)
        assert forked_migrators.wait() == -signal.SIGKILL
        assert empty_database.rows(INVALID_INDEXES) != []
    assert run(forked_migrators, empty_database) == 0
    assert empty_database.rows(INVALID_INDEXES) == []
    assert dump_of(empty_database.dsn) == expected_schema


@contextmanager
def old_reader(database: TestDatabase) -> Iterator[None]:
    reader = Session(database.dsn, database.loop)
    reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM jobs")
    yield
    reader.execute("COMMIT")
    reader.close()


def run(forked_migrators: Migrators, database: TestDatabase) -> int:
    forked_migrators.start(database.dsn)
    return forked_migrators.wait()
