"""Migrations of the SQL function and its role.

They go down and up, run with few rights, in any schema, and in several databases concurrently.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.db import migrations
from tests.database import Loop, TestDatabase, create_empty_database, in_database, server
from tests.sql.enqueue.conftest import Session
from tests.upgrades.migrations.test_concurrent_migrations import migrator
from tests.versions import AVAILABLE_VERSIONS

pytestmark = pytest.mark.slow

FUNCTIONS = "SELECT proname FROM pg_proc WHERE proname LIKE 'longshore%' ORDER BY proname"
ROLE = "SELECT count(*) FROM pg_roles WHERE rolname = 'longshore_producer'"
MAY_CALL = "SELECT has_function_privilege('longshore_producer', 'longshore_enqueue_v1'::regproc, 'EXECUTE')"
MAY_USE_SCHEMA = "SELECT has_schema_privilege('longshore_producer', $1, 'USAGE')"


@pytest.fixture(params=AVAILABLE_VERSIONS, ids=lambda version: f"postgres {version}")
def fresh_server(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server on which the role never existed, of every available version.

    Its folder is readable by all, because root starts the server as another user.
    """
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        patch.setattr("app.db.embedded.server.find_binaries", lambda: AVAILABLE_VERSIONS[request.param])
        with server(Path(folder) / "postgres") as dsn:
            yield dsn


def create_test_database(dsn: str, loop: Loop, name: str) -> TestDatabase:
    return TestDatabase(create_empty_database(dsn, loop, name), loop)


def test_downgrade_removes_the_functions_and_keeps_the_role(fresh_server: str, loop: Loop) -> None:
    database = create_test_database(fresh_server, loop, "shared")
    migrations.upgrade(database.dsn)
    before = database.rows(FUNCTIONS)
    assert (database.value(ROLE), database.value(MAY_CALL), len(before)) == (1, True, 13)
    migrations.downgrade(database.dsn, "base")
    assert (database.rows(FUNCTIONS), database.value(ROLE)) == ([], 1)
    migrations.upgrade(database.dsn)
    assert (database.rows(FUNCTIONS), database.value(MAY_CALL)) == (before, True)
    database.close()


def test_migration_without_the_right_to_create_roles_creates_the_functions(fresh_server: str, loop: Loop) -> None:
    database = create_test_database(fresh_server, loop, "shared")
    database.execute("CREATE ROLE deployer LOGIN; ALTER DATABASE shared OWNER TO deployer")
    migrations.upgrade(database.dsn.replace("//postgres@", "//deployer@"))
    assert (database.value(ROLE), len(database.rows(FUNCTIONS))) == (0, 13)
    database.execute("CREATE ROLE shop LOGIN; GRANT EXECUTE ON FUNCTION longshore_enqueue_v1 TO shop")
    shop = Session(database.dsn.replace("//postgres@", "//shop@"), loop, "mail")
    assert shop.enqueue()
    shop.close()
    migrations.downgrade(database.dsn.replace("//postgres@", "//deployer@"), "base")
    database.close()


def test_sql_function_works_in_the_schema_in_which_it_was_created(fresh_server: str, loop: Loop) -> None:
    database = create_test_database(fresh_server, loop, "shared")
    database.execute("CREATE SCHEMA broker; ALTER DATABASE shared SET search_path = broker")
    migrations.upgrade(database.dsn)
    assert database.value(MAY_USE_SCHEMA, "broker")
    database.execute("ALTER DATABASE shared RESET search_path; CREATE ROLE shop LOGIN IN ROLE longshore_producer")
    shop = Session(database.dsn.replace("//postgres@", "//shop@"), loop, "mail")
    job_id = shop.value("SELECT broker.longshore_enqueue_v1('test', unique_key => 'k', group_key => 'g')")
    assert database.value("SELECT id FROM broker.jobs") == job_id
    shop.close()
    database.close()


def test_databases_of_one_server_can_be_migrated_concurrently(fresh_server: str, loop: Loop) -> None:
    names = ("one", "two", "three")
    for name in names:
        create_empty_database(fresh_server, loop, name)
    running = [migrator(in_database(fresh_server, name)) for name in names]
    assert [process.wait(120) for process in running] == [0] * len(names)
    for name in names:
        database = TestDatabase(in_database(fresh_server, name), loop)
        assert (database.value(ROLE), database.value(MAY_CALL)) == (1, True)
        database.close()
