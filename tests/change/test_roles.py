"""The role that serves owns nothing and has no DDL (E16): a whole broker lives on it, and it can do nothing else."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tests.api import Api
from tests.broker import RunningBroker, broker_process
from tests.change.roles import OWNER, SERVER, ServerLog, as_role, owned_database
from tests.contract.arrangements import ARRANGED, example, with_real_names
from tests.database import Loop, TestDatabase
from tests.sql.lifecycles import run_all_lifecycles
from tests.sql.statements import ALL_STATEMENTS, statement_named

Eventually = Callable[[Callable[[], Any]], Any]

RIGHTS = ("rolsuper", "rolcreaterole", "rolcreatedb", "rolreplication", "rolbypassrls")
OWNED = "SELECT count(*) FROM pg_shdepend WHERE refobjid = $1::regrole AND deptype = 'o'"
TABLES = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')"
MAY = "SELECT has_table_privilege($1, $2, $3)"
FUNCTIONS = "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND has_function_privilege($1, oid, 'EXECUTE')"
GRANTED = """
SELECT relname, privilege_type
FROM pg_class, aclexplode(relacl)
WHERE grantee = $1::regrole
ORDER BY relname, privilege_type
"""
READ_ONLY = {"alembic_version", "finished_jobs_default"}

ADMINISTRATOR = {"name": "administrator", "scopes": ["enqueue", "work", "read", "manage"], "max_leases": 1000}
AN_OLD_DAY = "SELECT make_finished_partition('2020-01-01', false)"
AN_OLD_KEY = "INSERT INTO keys (lane, digest, expires_at) VALUES (7, gen_random_uuid(), now() - interval '1 day')"


@pytest.fixture(scope="module")
def owned(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = owned_database(postgres, loop, "roles")
    yield database
    database.close()


@pytest.fixture
def session(owned: TestDatabase, loop: Loop) -> Iterator[Callable[[str], Any]]:
    """SQL as the role that serves."""
    connection: Any = loop.run(asyncpg.connect(as_role(owned.dsn, SERVER)))
    yield lambda sql: loop.run(connection.execute(sql))
    loop.run(connection.close())


def call_every_operation(broker: RunningBroker, database: TestDatabase) -> None:
    """With a key, as some of them make keys: from the first one on every call needs one."""
    key = Api(broker.http, "").post("/api-keys", ADMINISTRATOR, status=201)["key"]
    broker.http.headers["Authorization"] = f"Bearer {key}"
    for name, arranged in ARRANGED.items():
        database.empty()
        sent, answer = example(name)["request"], example(name)["answer"]
        real = with_real_names(sent, arranged(Api(broker.http, f"for.{name}")))
        response = broker.http.request(sent["method"], real["path"], json=real.get("body"), headers=real.get("headers"))
        assert response.status_code == answer["status"], (name, response.text)


async def run_what_is_rarely_run(dsn: str) -> None:
    """An operator's, after a restore; and a look over a lane that is full of the dead, which otherwise is only explained."""
    connection = await asyncpg.connect(dsn)
    await connection.fetch(statement_named("live_tokens").text, -(2**31), UUID(int=0), 1)
    await connection.fetch(statement_named("first_ready").text, 256, [0])
    await connection.close()


def test_every_operation_and_every_statement_runs_with_what_the_role_was_granted(
    owned: TestDatabase, eventually: Eventually
) -> None:
    """From the first word of a broker process to its last; what chores do once in a while is there when it begins."""
    owned.execute(AN_OLD_DAY)
    owned.execute(AN_OLD_KEY)
    log = ServerLog(owned)
    with broker_process(as_role(owned.dsn, SERVER), sweep_seconds="0.05", poll_seconds="0.2", log_level="error") as (
        broker,
        _,
    ):
        api = Api(broker.http, "life")
        assert api.get("/readyz")["ready"]
        run_all_lifecycles(api, owned)
        call_every_operation(broker, owned)
        eventually(lambda: owned.value("SELECT to_regclass('finished_jobs_20200101') IS NULL"))
        eventually(lambda: "record_key_use" in log.statements())  # once in a while
    owned.loop.run(run_what_is_rarely_run(as_role(owned.dsn, SERVER)))
    left = {statement.name for statement in ALL_STATEMENTS} - log.statements()
    assert log.denied() == []
    assert left == set()


@pytest.mark.parametrize("role", [OWNER, SERVER, "longshore_broker"])
def test_neither_role_is_anything_special(owned: TestDatabase, role: str) -> None:
    told = owned.row("SELECT * FROM pg_roles WHERE rolname = $1", role)
    assert [told[right] for right in RIGHTS] == [False] * len(RIGHTS)


@pytest.mark.parametrize("role", [SERVER, "longshore_broker"])
def test_who_serves_owns_nothing(owned: TestDatabase, role: str) -> None:
    assert owned.value(OWNED, role) == 0
    assert owned.value(OWNED, OWNER) > 0, "the control: this is how it would show"


def test_nobody_can_log_in_as_the_group(owned: TestDatabase) -> None:
    assert owned.value("SELECT rolcanlogin FROM pg_roles WHERE rolname = 'longshore_broker'") is False


def test_who_serves_reads_every_table_and_writes_where_it_must(owned: TestDatabase) -> None:
    """A table that a later migration makes without a grant fails here. Days of finished jobs are reached through their table."""
    tables = {row["relname"] for row in owned.rows(TABLES) if not row["relname"][-8:].isdigit()}
    assert {table for table in tables if not owned.value(MAY, SERVER, table, "SELECT")} == set()
    assert {table for table in tables if not owned.value(MAY, SERVER, table, "INSERT, UPDATE")} == READ_ONLY
    assert {table for table in tables if owned.value(MAY, SERVER, table, "TRUNCATE, REFERENCES, TRIGGER")} == set()


def test_who_serves_may_call_the_two_functions_that_make_and_retire_partitions(owned: TestDatabase) -> None:
    assert {row["proname"] for row in owned.rows(FUNCTIONS, SERVER)} == {
        "make_finished_partition",
        "retire_finished_partition",
    }


def test_everybody_else_may_call_none(owned: TestDatabase) -> None:
    assert [row["proname"] for row in owned.rows(FUNCTIONS, "public")] == []


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
        "ALTER FUNCTION make_finished_partition SECURITY INVOKER",
        "ALTER ROLE longshore_broker SUPERUSER",
        "DROP TABLE jobs",
        "DROP INDEX jobs_ready",
        "TRUNCATE jobs",
        "TRUNCATE finished_jobs",
        "DELETE FROM finished_jobs",
        "UPDATE finished_jobs SET result = NULL",
        "DELETE FROM api_keys",
        "UPDATE alembic_version SET version_num = '0001'",
        "SELECT grant_to_broker('change_server')",
        "SELECT longshore_enqueue_v1('test')",
        f"SET ROLE {OWNER}",
        "SET session_replication_role = replica",
        "COPY jobs TO PROGRAM 'cat'",
        "SELECT pg_read_file('PG_VERSION')",
    ],
)
def test_who_serves_is_refused_everything_else(session: Callable[[str], Any], sql: str) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        session(sql)


def test_a_refusal_would_have_been_found_in_the_log(
    owned: TestDatabase, session: Callable[[str], Any], eventually: Eventually
) -> None:
    """The control of the first test."""
    log = ServerLog(owned)
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        session("TRUNCATE jobs")
    eventually(log.denied)


def test_a_finished_day_can_be_read_and_changed_by_nobody_who_serves(
    owned: TestDatabase, session: Callable[[str], Any]
) -> None:
    """But through the table that it is a part of."""
    session(AN_OLD_DAY)
    assert not any(
        owned.value(MAY, SERVER, "finished_jobs_20200101", right) for right in ("SELECT", "INSERT", "UPDATE", "DELETE")
    )


def test_a_role_of_another_name_is_granted_the_same(owned: TestDatabase, loop: Loop) -> None:
    """For servers on which who migrates may not make roles."""
    owned.execute("DROP ROLE IF EXISTS change_other; CREATE ROLE change_other")
    owner: Any = loop.run(asyncpg.connect(as_role(owned.dsn, OWNER)))
    loop.run(owner.execute("SELECT grant_to_broker('change_other')"))
    loop.run(owner.close())
    assert owned.rows(GRANTED, "change_other") == owned.rows(GRANTED, "longshore_broker") != []
    owned.execute("DROP OWNED BY change_other; DROP ROLE change_other")
