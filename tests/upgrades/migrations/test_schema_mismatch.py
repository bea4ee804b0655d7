"""A schema that a broker cannot use: every response, the log and the commands name its revision and
the remedy."""

import json
import re
import subprocess
import sys

from app.db import migrations
from tests.api_client import Api, Json
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.contract.cli.command import environment, run
from tests.contract.document import operations
from tests.database import Loop, TestDatabase
from tests.upgrades.rollout.roles import BROKER_ROLE, as_role, owned_database

WITHOUT_DATABASE = {"get_liveness", "get_readiness", "get_limits"}
MIGRATE = f"this release needs {migrations.head()}: run `python -m app migrate`"
REQUESTS = {
    "enqueue": ("POST", "/jobs", {"queue": "mail", "job_type": "welcome"}),
    "get": ("GET", "/jobs/00000000-0000-7000-8000-000000000000", None),
}


def details(dsn: str) -> dict[str, str]:
    """Returns the detail of the 503 `not_done` response of each request."""
    found: dict[str, str] = {}
    with threaded_broker(TEST_SETTINGS, dsn) as broker:
        for name, (method, path, body) in REQUESTS.items():
            response = broker.http.request(method, path, json=body)
            problem = response.json()
            assert (response.status_code, problem["code"], problem["outcome"]) == (
                503,
                "database_unavailable",
                "not_done",
            ), response.text
            found[name] = problem["detail"]
    return found


def test_every_operation_on_an_unmigrated_database_reports_the_detail_of_readyz(empty_database: TestDatabase) -> None:
    with threaded_broker(TEST_SETTINGS, empty_database.dsn) as broker:
        api = Api(broker.http, "mail")
        (expected,) = [
            check["detail"] for check in api.get("/readyz", status=503)["checks"] if check["name"] == "schema"
        ]
        found: dict[str, tuple[int, str]] = {}
        for operation in operations():
            path = re.sub(r"\{\w+\}", "00000000-0000-7000-8000-000000000000", operation.path)
            response = broker.http.request(
                operation.method.upper(), path, json=None if operation.request_schema is None else {}
            )
            if operation.name not in WITHOUT_DATABASE:
                found[operation.name] = (response.status_code, response.json().get("detail", response.text))
    assert expected == f"the database has no schema yet, {MIGRATE}"
    assert {name: response for name, response in found.items() if response != (503, expected)} == {}
    assert len(found) > 40


def test_missing_table_is_named_in_the_response(empty_database: TestDatabase) -> None:
    migrations.upgrade(empty_database.dsn)
    empty_database.execute(
        "ALTER TABLE dead_letters DROP COLUMN reason;"
        "DROP FUNCTION create_finished_partition;"
        "ALTER TABLE jobs RENAME TO gone"
    )
    found = details(empty_database.dsn)
    assert set(found.values()) == {f'the schema is at {migrations.head()}, but relation "jobs" does not exist'}


def test_newer_schema_without_a_required_column_requires_a_newer_release(empty_database: TestDatabase) -> None:
    migrations.upgrade(empty_database.dsn)
    empty_database.execute(
        "UPDATE alembic_version SET version_num = '9999'; ALTER TABLE jobs RENAME COLUMN tags TO labels"
    )
    found = details(empty_database.dsn)
    assert {detail.partition(", but column ")[0] for detail in found.values()} == {"the schema is at 9999"}
    assert all(
        detail.endswith(f"this release knows the schema up to {migrations.head()} only: run a newer release")
        for detail in found.values()
    )


def test_missing_privileges_are_reported_with_role_and_grant(postgres: str, loop: Loop) -> None:
    database = owned_database(postgres, loop, "misfits")
    database.execute("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM longshore_broker")
    found = details(as_role(database.dsn, BROKER_ROLE))
    grant = f"its owner must run SELECT grant_to_broker('{BROKER_ROLE}')"
    assert {detail.partition(" (")[0] for detail in found.values()} == {
        f"the database role {BROKER_ROLE} may not use the schema"
    }
    assert all("permission denied for table" in detail and detail.endswith(grant) for detail in found.values())
    database.execute(f"SELECT grant_to_broker('{BROKER_ROLE}')")
    with threaded_broker(TEST_SETTINGS, as_role(database.dsn, BROKER_ROLE)) as broker:
        Api(broker.http, "mail").enqueue()
    database.close()


def test_start_log_and_commands_name_the_required_revision(empty_database: TestDatabase) -> None:
    variables = environment(DATABASE_URL=empty_database.dsn, LONGSHORE_PORT="0")
    with subprocess.Popen(
        [sys.executable, "-m", "app", "serve"], env=variables, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        lines: list[Json] = []
        for line in process.stderr:
            lines.append(json.loads(line))
            if lines[-1]["event"] == "broker started":
                break
        process.terminate()
    warnings = [
        line["detail"] for line in lines if line["level"] == "warning" and line["event"] == "database not ready"
    ]
    assert warnings == [f"the database has no schema yet, {MIGRATE}"]
    listed = run("keys", "list", DATABASE_URL=empty_database.dsn)
    assert (listed.returncode, warnings[0] in listed.stderr) == (1, True), listed.stderr
