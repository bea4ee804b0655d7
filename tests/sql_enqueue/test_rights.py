"""Who was granted longshore_producer can enqueue and nothing else, and cannot make the function do something else."""

from collections.abc import Iterator

import asyncpg
import pytest

from tests.api import Api
from tests.database import TestDatabase
from tests.sql_enqueue.conftest import Session

TABLES = """
SELECT relname
FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'S')
    AND has_table_privilege('shop', oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
"""
FUNCTIONS = "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND has_function_privilege('shop', oid, 'EXECUTE')"
DEFINERS = "SELECT proname, proconfig FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND prosecdef"

# Whatever the function could mistake for what it looks for: it would fail, or leave its rows there.
TABLE_NAMES = (
    "queues",
    "job_types",
    "jobs",
    "finished_jobs",
    "dead_letters",
    "keys",
    "gates",
    "rests",
    "dependents",
    "stat_totals",
    "stat_deltas",
    "versions",
)
TRAP = "LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'fooled by a function'; END $$"
TRAPS = (
    f"FUNCTION traps.longshore_queue(text) RETURNS text {TRAP}",
    f"FUNCTION traps.longshore_json_fault(json, int) RETURNS text {TRAP}",
    f"FUNCTION traps.longshore_lane(uuid) RETURNS int {TRAP}",
    f"FUNCTION traps.longshore_digest(text) RETURNS uuid {TRAP}",
    f"FUNCTION traps.clock_timestamp() RETURNS timestamptz {TRAP}",
    f"FUNCTION traps.gen_random_uuid() RETURNS uuid {TRAP}",
    f"FUNCTION traps.sha256(bytea) RETURNS bytea {TRAP}",
    f"FUNCTION traps.random() RETURNS double precision {TRAP}",
    f"FUNCTION traps.trap(text, text) RETURNS boolean {TRAP}",
    "OPERATOR traps.= (LEFTARG = text, RIGHTARG = text, FUNCTION = traps.trap)",
    "OPERATOR traps.!~ (LEFTARG = text, RIGHTARG = text, FUNCTION = traps.trap)",
    "OPERATOR traps.<> (LEFTARG = text, RIGHTARG = text, FUNCTION = traps.trap)",
)
EVERYTHING: dict[str, object] = {
    "payload": '{"a": [1, {"b": "c"}]}',
    "group_key": "g",
    "unique_key": "k",
    "on_duplicate": "replace",
    "retry": '{"factor": 2}',
    "tags": ["a"],
    "metadata": '{"a": 1}',
}


@pytest.fixture
def traps(shop: Session, db: TestDatabase) -> Iterator[Session]:
    """The service with traps of every kind in a schema of its own, which it searches first, even before Postgres' own."""
    db.execute("CREATE SCHEMA traps AUTHORIZATION shop")
    for name in TABLE_NAMES:
        shop.execute(f"CREATE TABLE traps.{name} (lane int, id int, name text)")
    for made in TRAPS:
        shop.execute(f"CREATE {made}")
    shop.execute("SET search_path = traps, pg_catalog, public")
    yield shop
    db.execute("DROP SCHEMA traps CASCADE")


@pytest.fixture
def stranger(shared: TestDatabase, db: TestDatabase) -> asyncpg.PostgresError:
    """What somebody hears who was granted nothing."""
    db.execute("DROP ROLE IF EXISTS stranger; CREATE ROLE stranger LOGIN")
    session = Session(db.dsn.replace("//postgres@", "//stranger@"), db.loop, "mail")
    refused = session.refused()
    session.close()
    return refused


def test_a_producer_has_rights_on_no_table(shop: Session, db: TestDatabase) -> None:
    assert db.rows(TABLES) == []


def test_a_producer_may_call_one_function(shop: Session, db: TestDatabase) -> None:
    assert [row["proname"] for row in db.rows(FUNCTIONS)] == ["longshore_enqueue_v1"]


def test_a_producer_may_make_nothing_in_our_schema(shop: Session, db: TestDatabase) -> None:
    assert db.value("SELECT has_schema_privilege('shop', 'public', 'CREATE')") is False


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id FROM jobs",
        "INSERT INTO queues (id, name) VALUES (60000, 'mine')",
        "UPDATE versions SET number = 0",
        "DELETE FROM keys",
        "TRUNCATE jobs",
        "SELECT longshore_lane(gen_random_uuid())",
        "SELECT longshore_replace(gen_random_uuid(), NULL, NULL, now())",
        "SELECT make_finished_partition('2030-01-01', false)",
        "SELECT retire_finished_partition('finished_jobs_20300101', false)",
        "ALTER FUNCTION longshore_enqueue_v1 SECURITY INVOKER",
        "ALTER FUNCTION longshore_enqueue_v1 SET search_path = shop",
        "CREATE TABLE public.mine (id int)",
    ],
)
def test_a_producer_is_refused_everything_else(shop: Session, sql: str) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        shop.execute(sql)


def test_who_was_not_granted_the_role_may_not_enqueue(stranger: asyncpg.PostgresError) -> None:
    assert isinstance(stranger, asyncpg.InsufficientPrivilegeError)


def test_the_role_cannot_log_in_and_is_nothing_special(shared: TestDatabase) -> None:
    role = shared.row("SELECT * FROM pg_roles WHERE rolname = 'longshore_producer'")
    rights = ("rolsuper", "rolcreaterole", "rolcreatedb", "rolcanlogin", "rolreplication", "rolbypassrls")
    assert [role[right] for right in rights] == [False] * 6


def test_every_function_that_runs_as_its_owner_has_a_fixed_search_path(shared: TestDatabase) -> None:
    paths = {
        row["proname"]: [setting for setting in row["proconfig"] if "search_path" in setting]
        for row in shared.rows(DEFINERS)
    }
    assert "longshore_enqueue_v1" in paths
    assert {tuple(path) for path in paths.values()} == {("search_path=public, pg_temp",)}


def test_tables_functions_and_operators_of_the_caller_do_not_fool_it(
    traps: Session, api: Api, db: TestDatabase
) -> None:
    with pytest.raises(asyncpg.RaiseError, match="fooled"):
        traps.execute("SELECT clock_timestamp()")  # the traps are armed
    job_id = traps.enqueue(**EVERYTHING)
    assert traps.enqueue(**EVERYTHING) == job_id
    child = traps.enqueue(depends_on=[job_id])
    assert [api.job(one)["state"] for one in (job_id, child)] == ["ready", "blocked"]
    assert [name for name in TABLE_NAMES if db.value(f"SELECT count(*) FROM traps.{name}")] == []


def test_temporary_tables_of_the_caller_do_not_fool_it(shop: Session, api: Api) -> None:
    for name in TABLE_NAMES:
        shop.execute(f"CREATE TEMP TABLE {name} (lane int, id int, name text)")
    job_id = shop.enqueue(**EVERYTHING)
    assert shop.enqueue(**EVERYTHING) == job_id
    assert api.claim_one()["id"] == job_id
    assert [name for name in TABLE_NAMES if shop.value(f"SELECT count(*) FROM pg_temp.{name}")] == []


def test_the_function_leaves_the_session_as_it_was(shop: Session) -> None:
    shop.execute("SET search_path = shop, public")
    shop.enqueue()
    shown = [shop.value(f"SHOW {name}") for name in ("search_path", "enable_seqscan", "enable_bitmapscan")]
    assert [*shown, shop.value("SELECT current_user")] == ["shop, public", "on", "on", "shop"]
