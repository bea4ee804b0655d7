"""How the function and its role come and go: down and up, by a migrator with few rights, in any schema, in several databases at once."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.db import migrations
from tests.database import Loop, TestDatabase, create_empty_database, in_database, server
from tests.migrations.test_in_company import migrator
from tests.sql_enqueue.conftest import Session
from tests.versions import AT_HAND

FUNCTIONS = "SELECT proname FROM pg_proc WHERE proname LIKE 'longshore%' ORDER BY proname"
ROLE = "SELECT count(*) FROM pg_roles WHERE rolname = 'longshore_producer'"
MAY_CALL = "SELECT has_function_privilege('longshore_producer', 'longshore_enqueue_v1'::regproc, 'EXECUTE')"
MAY_LOOK = "SELECT has_schema_privilege('longshore_producer', $1, 'USAGE')"


@pytest.fixture(params=AT_HAND, ids=lambda version: f"postgres {version}")
def fresh(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server on which the role has never been, of every version at hand. Its folder is open: root starts it as another user."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        patch.setattr("app.db.embedded.server.find_binaries", lambda: AT_HAND[request.param])
        with server(Path(folder) / "postgres") as dsn:
            yield dsn


def opened(dsn: str, loop: Loop, name: str) -> TestDatabase:
    return TestDatabase(create_empty_database(dsn, loop, name), loop)


def test_down_takes_the_functions_away_and_leaves_the_role(fresh: str, loop: Loop) -> None:
    database = opened(fresh, loop, "shared")
    migrations.upgrade(database.dsn)
    before = database.rows(FUNCTIONS)
    assert (database.value(ROLE), database.value(MAY_CALL), len(before)) == (1, True, 12)
    migrations.downgrade(database.dsn, "0003")
    assert (database.rows(FUNCTIONS), database.value(ROLE)) == ([], 1)
    migrations.upgrade(database.dsn)
    assert (database.rows(FUNCTIONS), database.value(MAY_CALL)) == (before, True)
    database.close()


def test_a_migrator_that_may_not_create_roles_does_the_rest(fresh: str, loop: Loop) -> None:
    database = opened(fresh, loop, "shared")
    database.execute("CREATE ROLE deployer LOGIN; ALTER DATABASE shared OWNER TO deployer")
    migrations.upgrade(database.dsn.replace("//postgres@", "//deployer@"))
    assert (database.value(ROLE), len(database.rows(FUNCTIONS))) == (0, 12)
    database.execute("CREATE ROLE shop LOGIN; GRANT EXECUTE ON FUNCTION longshore_enqueue_v1 TO shop")
    shop = Session(database.dsn.replace("//postgres@", "//shop@"), loop, "mail")
    assert shop.enqueue()
    shop.close()
    migrations.downgrade(database.dsn.replace("//postgres@", "//deployer@"), "base")
    database.close()


def test_the_function_stays_in_the_schema_in_which_it_was_made(fresh: str, loop: Loop) -> None:
    database = opened(fresh, loop, "shared")
    database.execute("CREATE SCHEMA broker; ALTER DATABASE shared SET search_path = broker")
    migrations.upgrade(database.dsn)
    assert database.value(MAY_LOOK, "broker")
    database.execute("ALTER DATABASE shared RESET search_path; CREATE ROLE shop LOGIN IN ROLE longshore_producer")
    shop = Session(database.dsn.replace("//postgres@", "//shop@"), loop, "mail")
    job_id = shop.value("SELECT broker.longshore_enqueue_v1('test', unique_key => 'k', group_key => 'g')")
    assert database.value("SELECT id FROM broker.jobs") == job_id
    shop.close()
    database.close()


def test_two_databases_of_one_server_are_migrated_at_once(fresh: str, loop: Loop) -> None:
    names = ("one", "two", "three")
    for name in names:
        create_empty_database(fresh, loop, name)
    running = [migrator(in_database(fresh, name)) for name in names]
    assert [process.wait(120) for process in running] == [0] * len(names)
    for name in names:
        database = TestDatabase(in_database(fresh, name), loop)
        assert (database.value(ROLE), database.value(MAY_CALL)) == (1, True)
        database.close()
