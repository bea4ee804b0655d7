"""The database role of brokers owns nothing and may run no DDL (docs/reliability/faults.md#e16).

A complete broker runs with this role, and the role can do nothing else."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tests.api_client import Api
from tests.broker import RunningBroker, broker_process
from tests.contract.example_setup import SETUPS, example, with_real_ids
from tests.database import Loop, TestDatabase
from tests.sql.lifecycles import run_all_lifecycles
from tests.sql.statements import ALL_STATEMENTS, statement_named
from tests.upgrades.rollout.roles import BROKER_ROLE, OWNER_ROLE, ServerLog, as_role, owned_database

Eventually = Callable[[Callable[[], Any]], Any]

ATTRIBUTES = ("rolsuper", "rolcreaterole", "rolcreatedb", "rolreplication", "rolbypassrls")
COUNT_OWNED = "SELECT count(*) FROM pg_shdepend WHERE refobjid = $1::regrole AND deptype = 'o'"
TABLES = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')"
HAS_PRIVILEGE = "SELECT has_table_privilege($1, $2, $3)"
FUNCTIONS = """
SELECT proname
FROM pg_proc
WHERE pronamespace = 'public'::regnamespace AND has_function_privilege($1, oid, 'EXECUTE')
"""
GRANTED = """
SELECT relname, privilege_type
FROM pg_class, aclexplode(relacl)
WHERE grantee = $1::regrole
ORDER BY relname, privilege_type
"""
READ_ONLY = {"alembic_version", "finished_jobs_default", "queue_id_range"}

ADMINISTRATOR = {"name": "administrator", "scopes": ["enqueue", "work", "read", "manage"], "max_leases": 1000}
CREATE_OLD_PARTITION = "SELECT create_finished_partition('2020-01-01', false)"
INSERT_EXPIRED_KEY = (
    "INSERT INTO deduplication_keys (lane, digest, expires_at) VALUES (7, gen_random_uuid(), now() - interval '1 day')"
)


@pytest.fixture(scope="module")
def owned_db(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = owned_database(postgres, loop, "roles")
    yield database
    database.close()


@pytest.fixture
def session(owned_db: TestDatabase, loop: Loop) -> Iterator[Callable[[str], Any]]:
    """Runs SQL as the role of brokers."""
    connection: Any = loop.run(asyncpg.connect(as_role(owned_db.dsn, BROKER_ROLE)))
    yield lambda sql: loop.run(connection.execute(sql))
    loop.run(connection.close())


def call_every_operation(broker: RunningBroker, database: TestDatabase) -> None:
    """Uses an API key, because some operations create keys, and then every request needs one."""
    key = Api(broker.http, "").post("/api-keys", ADMINISTRATOR, status=201)["key"]
    broker.http.headers["Authorization"] = f"Bearer {key}"
    for name, set_up in SETUPS.items():
        database.empty()
        request, expected = example(name)["request"], example(name)["answer"]
        real = with_real_ids(request, set_up(Api(broker.http, f"for.{name}")))
        response = broker.http.request(
            request["method"], real["path"], json=real.get("body"), headers=real.get("headers")
        )
        assert response.status_code == expected["status"], (name, response.text)


async def run_rare_statements(dsn: str) -> None:
    """Runs the statement of the `restored` command, the low-water mark scan of a lane full of
    dead tuples, which brokers otherwise only EXPLAIN, the look-up of a queue that another process
    has created, the repair of queues, and the statements after a jump of the clock."""
    connection = await asyncpg.connect(dsn)
    unused_tokens, first_ready = (statement_named(name).query for name in ("unused_tokens", "first_ready"))
    await connection.fetch(*unused_tokens(after_lane=-(2**31), after_id=UUID(int=0), limit=1))
    await connection.fetch(*first_ready(lane=256, priorities=[0]))
    await connection.fetch(*statement_named("queues_with_ids").query(ids=[1]))
    lag: dict[str, Any] = {"clock": "retention", "broker": UUID(int=0)}
    started, ended = datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 2, tzinfo=UTC)
    write, delete = (statement_named(name).query for name in ("write_clock_lag", "delete_clock_lag"))
    await connection.fetch(*write(**lag, seconds=600.0, starts_at=started, ends_at=ended))
    await connection.fetch(*delete(**lag))
    await connection.fetch(*statement_named("has_groups").query(id=1))
    await connection.fetch(*statement_named("spread_groups").query(ids=[1]))
    await connection.fetch(*statement_named("reopen_lanes").query(ids=[1], lanes=[1]))
    await connection.close()


def test_every_operation_and_statement_runs_with_the_granted_privileges(
    owned_db: TestDatabase, eventually: Eventually
) -> None:
    """Covers a broker process from start to exit. The database has work for the services that
    rarely run: an old partition and an expired key."""
    owned_db.execute(CREATE_OLD_PARTITION)
    owned_db.execute(INSERT_EXPIRED_KEY)
    log = ServerLog(owned_db)
    with broker_process(
        as_role(owned_db.dsn, BROKER_ROLE), sweep_seconds="0.05", poll_seconds="0.2", log_level="error"
    ) as (
        broker,
        _,
    ):
        api = Api(broker.http, "life")
        assert api.get("/readyz")["ready"]
        run_all_lifecycles(api, owned_db)
        call_every_operation(broker, owned_db)
        eventually(lambda: owned_db.value("SELECT to_regclass('finished_jobs_20200101') IS NULL"))
        eventually(lambda: "record_key_use" in log.statements())  # written periodically
    owned_db.loop.run(run_rare_statements(as_role(owned_db.dsn, BROKER_ROLE)))
    missing = {statement.name for statement in ALL_STATEMENTS} - log.statements()
    assert log.denied() == []
    assert missing == set()


@pytest.mark.parametrize("role", [OWNER_ROLE, BROKER_ROLE, "longshore_broker"])
def test_role_has_no_special_attributes(owned_db: TestDatabase, role: str) -> None:
    row = owned_db.row("SELECT * FROM pg_roles WHERE rolname = $1", role)
    assert [row[attribute] for attribute in ATTRIBUTES] == [False] * len(ATTRIBUTES)


@pytest.mark.parametrize("role", [BROKER_ROLE, "longshore_broker"])
def test_broker_role_owns_nothing(owned_db: TestDatabase, role: str) -> None:
    assert owned_db.value(COUNT_OWNED, role) == 0
    assert owned_db.value(COUNT_OWNED, OWNER_ROLE) > 0, "control: the query finds owned objects"


def test_group_role_cannot_log_in(owned_db: TestDatabase) -> None:
    assert owned_db.value("SELECT rolcanlogin FROM pg_roles WHERE rolname = 'longshore_broker'") is False


def test_broker_role_reads_every_table_and_writes_only_where_needed(owned_db: TestDatabase) -> None:
    """Fails for a table that a later migration creates without a grant. Daily partitions of
    finished jobs are accessed through their parent table."""
    tables = {row["relname"] for row in owned_db.rows(TABLES) if not row["relname"][-8:].isdigit()}
    assert {table for table in tables if not owned_db.value(HAS_PRIVILEGE, BROKER_ROLE, table, "SELECT")} == set()
    assert {
        table for table in tables if not owned_db.value(HAS_PRIVILEGE, BROKER_ROLE, table, "INSERT, UPDATE")
    } == READ_ONLY
    assert {
        table for table in tables if owned_db.value(HAS_PRIVILEGE, BROKER_ROLE, table, "TRUNCATE, REFERENCES, TRIGGER")
    } == set()


def test_broker_role_may_call_only_the_functions_of_claims_and_partitions(owned_db: TestDatabase) -> None:
    assert {row["proname"] for row in owned_db.rows(FUNCTIONS, BROKER_ROLE)} == {
        "claim_jobs",
        "create_finished_partition",
        "retire_finished_partition",
    }


def test_public_role_may_call_no_function(owned_db: TestDatabase) -> None:
    assert [row["proname"] for row in owned_db.rows(FUNCTIONS, "public")] == []


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE public.mine (id int)",
        "CREATE FUNCTION public.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE SCHEMA mine",
        "CREATE EXTENSION dblink",
        "CREATE ROLE mine",
        "CREATE INDEX ON jobs (id)",
        "CREATE TRIGGER mine BEFORE INSERT ON jobs EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "ALTER TABLE jobs ADD COLUMN mine int",
        "ALTER TABLE finished_jobs DETACH PARTITION finished_jobs_default",
        "ALTER FUNCTION create_finished_partition SECURITY INVOKER",
        "ALTER ROLE longshore_broker SUPERUSER",
        "DROP TABLE jobs",
        "DROP INDEX jobs_due",
        "TRUNCATE jobs",
        "TRUNCATE finished_jobs",
        "DELETE FROM finished_jobs",
        "UPDATE finished_jobs SET result = NULL",
        "DELETE FROM api_keys",
        "UPDATE alembic_version SET version_num = '0001'",
        "SELECT grant_to_broker('change_server')",
        "SELECT longshore_enqueue_v1('test')",
        f"SET ROLE {OWNER_ROLE}",
        "SET session_replication_role = replica",
        "COPY jobs TO PROGRAM 'cat'",
        "SELECT pg_read_file('PG_VERSION')",
    ],
)
def test_broker_role_is_denied_everything_else(session: Callable[[str], Any], sql: str) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        session(sql)


def test_denied_statement_is_found_in_the_server_log(
    owned_db: TestDatabase, session: Callable[[str], Any], eventually: Eventually
) -> None:
    """Control of test_every_operation_and_statement_runs_with_the_granted_privileges."""
    log = ServerLog(owned_db)
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        session("TRUNCATE jobs")
    eventually(log.denied)


def test_broker_role_has_no_privilege_on_daily_partitions(
    owned_db: TestDatabase, session: Callable[[str], Any]
) -> None:
    """Brokers access partitions through the parent table only."""
    session(CREATE_OLD_PARTITION)
    assert not any(
        owned_db.value(HAS_PRIVILEGE, BROKER_ROLE, "finished_jobs_20200101", privilege)
        for privilege in ("SELECT", "INSERT", "UPDATE", "DELETE")
    )


def test_grant_function_gives_another_role_the_same_privileges(owned_db: TestDatabase, loop: Loop) -> None:
    """For servers on which the migrating role may not create roles."""
    owned_db.execute("DROP ROLE IF EXISTS change_other; CREATE ROLE change_other")
    owner: Any = loop.run(asyncpg.connect(as_role(owned_db.dsn, OWNER_ROLE)))
    loop.run(owner.execute("SELECT grant_to_broker('change_other')"))
    loop.run(owner.close())
    assert owned_db.rows(GRANTED, "change_other") == owned_db.rows(GRANTED, "longshore_broker") != []
    owned_db.execute("DROP OWNED BY change_other; DROP ROLE change_other")
