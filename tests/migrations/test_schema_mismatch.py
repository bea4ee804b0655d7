"""A schema that a broker cannot use: every call, the log and the commands say which revision it has and what to do."""

import json
import re
import subprocess
import sys

from app.db import migrations
from tests.api import Api, Json
from tests.broker import threaded_broker
from tests.change.roles import SERVER, as_role, owned_database
from tests.cli.command import environment, run
from tests.conftest import TEST_SETTINGS
from tests.contract.document import operations
from tests.database import Loop, TestDatabase

WITHOUT_DATABASE = {"get_liveness", "get_readiness", "get_limits"}
MIGRATE = f"this release needs {migrations.head()}: run `python -m app migrate`"
REFUSED = {
    "enqueue": ("POST", "/jobs", {"queue": "mail", "job_type": "welcome"}),
    "get": ("GET", "/jobs/00000000-0000-7000-8000-000000000000", None),
}


def details(dsn: str) -> dict[str, str]:
    """The detail of the 503 `not_done` of each call."""
    found: dict[str, str] = {}
    with threaded_broker(TEST_SETTINGS, dsn) as broker:
        for name, (method, path, body) in REFUSED.items():
            answer = broker.http.request(method, path, json=body)
            problem = answer.json()
            assert (answer.status_code, problem["code"], problem["outcome"]) == (
                503,
                "database_unavailable",
                "not_done",
            ), answer.text
            found[name] = problem["detail"]
    return found


def test_every_operation_on_an_unmigrated_database_says_what_readyz_says(blank: TestDatabase) -> None:
    with threaded_broker(TEST_SETTINGS, blank.dsn) as broker:
        api = Api(broker.http, "mail")
        (expected,) = [
            check["detail"] for check in api.get("/readyz", status=503)["checks"] if check["name"] == "schema"
        ]
        found: dict[str, tuple[int, str]] = {}
        for operation in operations():
            path = re.sub(r"\{\w+\}", "00000000-0000-7000-8000-000000000000", operation.path)
            answer = broker.http.request(operation.method.upper(), path, json=None if operation.takes is None else {})
            if operation.name not in WITHOUT_DATABASE:
                found[operation.name] = (answer.status_code, answer.json().get("detail", answer.text))
    assert expected == f"the database has no schema yet, {MIGRATE}"
    assert {name: answer for name, answer in found.items() if answer != (503, expected)} == {}
    assert len(found) > 40


def test_a_missing_column_or_table_is_named(blank: TestDatabase) -> None:
    migrations.upgrade(blank.dsn)
    blank.execute(
        "ALTER TABLE dead_letters DROP COLUMN reason; DROP FUNCTION make_finished_partition; ALTER TABLE jobs RENAME TO gone"
    )
    found = details(blank.dsn)
    assert set(found.values()) == {f'the schema is at {migrations.head()}, but relation "jobs" does not exist'}


def test_a_newer_schema_without_a_needed_column_asks_for_a_newer_release(blank: TestDatabase) -> None:
    migrations.upgrade(blank.dsn)
    blank.execute("UPDATE alembic_version SET version_num = '9999'; ALTER TABLE jobs RENAME COLUMN tags TO labels")
    found = details(blank.dsn)
    assert {detail.partition(", but column ")[0] for detail in found.values()} == {"the schema is at 9999"}
    assert all(
        detail.endswith(f"this release knows the schema up to {migrations.head()} only: run a newer release")
        for detail in found.values()
    )


def test_missing_privileges_name_the_role_and_the_grant(postgres: str, loop: Loop) -> None:
    database = owned_database(postgres, loop, "misfits")
    database.execute("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM longshore_broker")
    found = details(as_role(database.dsn, SERVER))
    grant = f"its owner must run SELECT grant_to_broker('{SERVER}')"
    assert {detail.partition(" (")[0] for detail in found.values()} == {
        f"the database role {SERVER} may not use the schema"
    }
    assert all("permission denied for table" in detail and detail.endswith(grant) for detail in found.values())
    database.execute(f"SELECT grant_to_broker('{SERVER}')")
    with threaded_broker(TEST_SETTINGS, as_role(database.dsn, SERVER)) as broker:
        Api(broker.http, "mail").enqueue()
    database.close()


def test_the_log_at_start_and_the_commands_name_the_needed_revision_too(blank: TestDatabase) -> None:
    given = environment(DATABASE_URL=blank.dsn, LONGSHORE_PORT="0")
    with subprocess.Popen(
        [sys.executable, "-m", "app", "serve"], env=given, stderr=subprocess.PIPE, text=True
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
    listed = run("keys", "list", DATABASE_URL=blank.dsn)
    assert (listed.returncode, warnings[0] in listed.stderr) == (1, True), listed.stderr
