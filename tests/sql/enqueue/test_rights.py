"""The role longshore_producer can enqueue and nothing else, and cannot subvert the function."""

from collections.abc import Iterator

import asyncpg
import pytest

from tests.api_client import Api
from tests.database import TestDatabase
from tests.sql.enqueue.conftest import Session
from tests.table import table

TABLES = """
SELECT relname
FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'S')
    AND has_table_privilege('shop', oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
"""
FUNCTIONS = """
SELECT proname
FROM pg_proc
WHERE pronamespace = 'public'::regnamespace AND has_function_privilege('shop', oid, 'EXECUTE')
"""
DEFINERS = "SELECT proname, proconfig FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND prosecdef"

# Objects that the function could confuse with its own: it would fail, or write its rows there.
TABLE_NAMES = (
    "queues",
    "job_types",
    "jobs",
    "finished_jobs",
    "dead_letters",
    "keys",
    "lane_locks",
    "group_cooldowns",
    "clock_lags",
    "dependents",
    "stat_totals",
    "stat_deltas",
    "versions",
)
TRAP = "LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'fooled by a function'; END $$"
TRAPS = (
    f"FUNCTION traps.longshore_find_or_create_queue(text) RETURNS text {TRAP}",
    f"FUNCTION traps.longshore_find_json_fault(json, int) RETURNS text {TRAP}",
    f"FUNCTION traps.longshore_lane_of(uuid) RETURNS int {TRAP}",
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
ALL_FIELDS: dict[str, object] = {
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
    """A session with traps in its own schema, which it searches even before pg_catalog."""
    db.execute("CREATE SCHEMA traps AUTHORIZATION shop")
    for name in TABLE_NAMES:
        shop.execute(f"CREATE TABLE traps.{name} (lane int, id int, name text)")
    for definition in TRAPS:
        shop.execute(f"CREATE {definition}")
    shop.execute("SET search_path = traps, pg_catalog, public")
    yield shop
    db.execute("DROP SCHEMA traps CASCADE")


@pytest.fixture
def error_without_grant(shared_database: TestDatabase, db: TestDatabase) -> asyncpg.PostgresError:
    """The error of an enqueue by a role without the grant."""
    db.execute("DROP ROLE IF EXISTS stranger; CREATE ROLE stranger LOGIN")
    session = Session(db.dsn.replace("//postgres@", "//stranger@"), db.loop, "mail")
    error = session.enqueue_error()
    session.close()
    return error


def test_producer_role_has_no_rights_on_tables(shop: Session, db: TestDatabase) -> None:
    assert db.rows(TABLES) == []


def test_producer_role_may_call_one_function(shop: Session, db: TestDatabase) -> None:
    assert [row["proname"] for row in db.rows(FUNCTIONS)] == ["longshore_enqueue_v1"]


def test_producer_role_may_not_create_objects_in_the_schema(shop: Session, db: TestDatabase) -> None:
    assert db.value("SELECT has_schema_privilege('shop', 'public', 'CREATE')") is False


@table(
    "sql",
    [
        "SELECT id FROM jobs",
        "INSERT INTO queues (id, name) VALUES (60000, 'mine')",
        "UPDATE config_versions SET number = 0",
        "DELETE FROM deduplication_keys",
        "TRUNCATE jobs",
        "SELECT longshore_lane_of(gen_random_uuid())",
        "SELECT longshore_replace_waiting(gen_random_uuid(), NULL, NULL, now())",
        "SELECT create_finished_partition('2030-01-01', false)",
        "SELECT retire_finished_partition('finished_jobs_20300101', false)",
        "ALTER FUNCTION longshore_enqueue_v1 SECURITY INVOKER",
        "ALTER FUNCTION longshore_enqueue_v1 SET search_path = shop",
        "CREATE TABLE public.mine (id int)",
    ],
)
def test_producer_role_is_denied_everything_else(shop: Session, sql: str) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        shop.execute(sql)


def test_role_without_the_grant_may_not_enqueue(error_without_grant: asyncpg.PostgresError) -> None:
    assert isinstance(error_without_grant, asyncpg.InsufficientPrivilegeError)


def test_producer_role_cannot_log_in_and_has_no_attributes(shared_database: TestDatabase) -> None:
    role = shared_database.row("SELECT * FROM pg_roles WHERE rolname = 'longshore_producer'")
    rights = ("rolsuper", "rolcreaterole", "rolcreatedb", "rolcanlogin", "rolreplication", "rolbypassrls")
    assert [role[right] for right in rights] == [False] * 6


def test_every_security_definer_function_has_a_fixed_search_path(shared_database: TestDatabase) -> None:
    paths = {
        row["proname"]: [setting for setting in row["proconfig"] if "search_path" in setting]
        for row in shared_database.rows(DEFINERS)
    }
    assert "longshore_enqueue_v1" in paths
    assert {tuple(path) for path in paths.values()} == {("search_path=public, pg_temp",)}


def test_sql_function_ignores_objects_in_the_callers_schema(traps: Session, api: Api, db: TestDatabase) -> None:
    with pytest.raises(asyncpg.RaiseError, match="fooled"):
        traps.execute("SELECT clock_timestamp()")  # the traps work
    job_id = traps.enqueue(**ALL_FIELDS)
    assert traps.enqueue(**ALL_FIELDS) == job_id
    child = traps.enqueue(depends_on=[job_id])
    assert [api.job(id_)["state"] for id_ in (job_id, child)] == ["ready", "blocked"]
    assert [name for name in TABLE_NAMES if db.value(f"SELECT count(*) FROM traps.{name}")] == []


def test_sql_function_ignores_temporary_tables_of_the_caller(shop: Session, api: Api) -> None:
    for name in TABLE_NAMES:
        shop.execute(f"CREATE TEMP TABLE {name} (lane int, id int, name text)")
    job_id = shop.enqueue(**ALL_FIELDS)
    assert shop.enqueue(**ALL_FIELDS) == job_id
    assert api.claim_one()["id"] == job_id
    assert [name for name in TABLE_NAMES if shop.value(f"SELECT count(*) FROM pg_temp.{name}")] == []


def test_sql_function_leaves_the_session_settings_unchanged(shop: Session) -> None:
    shop.execute("SET search_path = shop, public")
    shop.enqueue()
    shown = [shop.value(f"SHOW {name}") for name in ("search_path", "enable_seqscan", "enable_bitmapscan")]
    assert [*shown, shop.value("SELECT current_user")] == ["shop, public", "on", "on", "shop"]
