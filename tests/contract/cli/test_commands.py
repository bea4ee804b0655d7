"""Commands that exit on their own (config, openapi, migrate), and their error messages."""

import json
import os
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from app.cli.commands import cli
from app.db.migrations import downgrade, head
from app.settings import Settings
from tests.contract.cli.command import run
from tests.contract.document import openapi
from tests.database import Loop, TestDatabase, copy_database, in_database
from tests.upgrades.later_revisions import BASELINE, later_revisions

pytestmark = pytest.mark.slow

SECRETS = {
    "DATABASE_URL": "postgresql://longshore:hunter2@db.example/longshore?sslpassword=hunter3",
    "LONGSHORE_LISTEN_URL": "postgresql://direct:hunter4@db.example/longshore",
    "LONGSHORE_KEY_PEPPER": "hunter5",
}


def test_config_prints_every_setting_and_no_secret() -> None:
    printed = run("config", LONGSHORE_PORT="9999", **SECRETS)
    assert printed.returncode == 0
    names = [line.partition("=")[0] for line in printed.stdout.splitlines()]
    assert names == [
        "DATABASE_URL" if name == "database_url" else f"LONGSHORE_{name.upper()}" for name in Settings.model_fields
    ]
    assert "LONGSHORE_PORT=9999" in printed.stdout
    assert "LONGSHORE_NOTIFY=true" in printed.stdout, "as in docs/reference/settings.md"
    assert "hunter" not in printed.stdout + printed.stderr
    assert "DATABASE_URL=postgresql://longshore:***@db.example/longshore" in printed.stdout


def test_config_output_is_valid_input() -> None:
    defaults = run("config").stdout
    values = dict(line.split("=", 1) for line in defaults.splitlines() if not line.endswith("="))
    assert run("config", **values).stdout == defaults


@pytest.mark.parametrize(
    ("command", "name", "value"),
    [
        ("config", "LONGSHORE_MAX_WAIT_SECONDS", "61"),
        ("config", "LONGSHORE_READ_TIMEOUT_SECONDS", "3000000"),
        ("migrate", "DATABASE_URL", "mysql://u:hunter2@db/x"),
    ],
)
def test_invalid_setting_prints_one_line_with_its_name(command: str, name: str, value: str) -> None:
    failed = run(command, **{name: value})
    assert failed.returncode == 2, failed.stdout
    assert len(failed.stderr.splitlines()) == 1, failed.stderr
    assert failed.stderr.startswith(f"longshore: {name}: ")
    assert "hunter" not in failed.stderr


def test_invalid_setting_prints_its_error_text() -> None:
    cases = {
        ("LONGSHORE_PORT", "abc"): "must be a whole number, not abc",
        ("LONGSHORE_PORT", "65536"): "must be at most 65535, not 65536",
        ("LONGSHORE_POOL_SIZE", "1"): "must be at least 2, not 1",
        ("LONGSHORE_BODY_SECONDS", "0"): "must be greater than 0, not 0",
        ("LONGSHORE_SILENT_SECONDS", "long"): "must be a number, not long",
        ("LONGSHORE_NOTIFY", "perhaps"): "must be true or false, not perhaps",
        ("LONGSHORE_FINISHED_MODE", "keep"): "must be 'drop' or 'detach', not keep",
        ("DATABASE_URL", "mysql://u:hunter2@db/x"): "not a postgresql:// URL",
        ("DATABASE_URL", "postgresql://u:hunter2@db:abc/x"): "the port must be a number from 1 to 65535",
        ("DATABASE_URL", "postgresql://u:hunter2@db:99999/x"): "the port must be a number from 1 to 65535",
        ("DATABASE_URL", "postgresql://u@/x?host=db&port=abc"): "the port must be a number from 1 to 65535",
        ("DATABASE_URL", "postgresql://u:hunter2/3@db/x"): "the port must be a number from 1 to 65535",
        ("LONGSHORE_LISTEN_URL", "postgresql://u:hunter2@a,[::1]/x"): (
            "not a valid URL: percent-encode special characters in the password; an IPv6 address must be the only host"
        ),
    }
    results = {(name, value): invoke("config", **{name: value}) for name, value in cases}
    expected = {(name, value): (2, "", f"longshore: {name}: {text}\n") for (name, value), text in cases.items()}
    assert {case: (done.exit_code, done.stdout, done.stderr) for case, done in results.items()} == expected


def test_default_lease_outside_the_limits_prints_all_three_names() -> None:
    failed = invoke("config", LONGSHORE_DEFAULT_LEASE_SECONDS="90000")
    assert (failed.exit_code, failed.stderr) == (
        2,
        "longshore: LONGSHORE_DEFAULT_LEASE_SECONDS must be between LONGSHORE_MIN_LEASE_SECONDS "
        "and LONGSHORE_MAX_LEASE_SECONDS\n",
    )


def invoke(*arguments: str, **variables: str) -> Result:
    """Runs a command in this process, because a new process takes seconds to start."""
    unset: dict[str, str | None] = {
        name: None for name in os.environ if name.startswith("LONGSHORE_") or name == "DATABASE_URL"
    }
    return CliRunner().invoke(cli, arguments, env=unset | variables, catch_exceptions=False)


def test_empty_variables_count_as_unset() -> None:
    assert (
        invoke("config", DATABASE_URL="", LONGSHORE_PORT="", LONGSHORE_LISTEN_URL="").stdout == invoke("config").stdout
    )


def test_misspelt_variable_prints_a_warning_with_the_nearest_name() -> None:
    printed = invoke("config", LONGSHORE_PROT="1", LONGSHORE_QQQQQQQQQ="1", LONGSHORE_URL="http://127.0.0.1:8080")
    assert (printed.exit_code, printed.stdout) == (0, invoke("config").stdout)
    assert printed.stderr.splitlines() == [
        "longshore: warning: LONGSHORE_PROT is not a setting: did you mean LONGSHORE_PORT?",
        "longshore: warning: LONGSHORE_QQQQQQQQQ is not a setting",
    ]
    warning, failure = run("serve", LONGSHORE_PROT="1", LONGSHORE_PORT="eighty").stderr.splitlines()
    assert json.loads(warning)["detail"] == "LONGSHORE_PROT is not a setting: did you mean LONGSHORE_PORT?"
    assert json.loads(failure)["event"] == "broker not started"


def test_serve_reports_invalid_setting_as_log_line() -> None:
    failed = run("serve", LONGSHORE_PORT="eighty")
    assert failed.returncode == 2, failed.stdout
    line = json.loads(failed.stderr)
    assert (line["event"], line["level"]) == ("broker not started", "error")
    assert line["detail"].startswith("LONGSHORE_PORT: ")


def test_all_invalid_settings_are_reported_together() -> None:
    failed = run("config", LONGSHORE_PORT="65536", LONGSHORE_LOG_LEVEL="loud")
    assert failed.returncode == 2
    assert len(failed.stderr.splitlines()) == 1, failed.stderr
    assert all(name in failed.stderr for name in ("LONGSHORE_PORT", "LONGSHORE_LOG_LEVEL"))


def test_openapi_prints_the_document() -> None:
    printed = run("openapi", LONGSHORE_MAX_BATCH_JOBS="7", DATABASE_URL="postgresql://nobody@nowhere/x")
    assert json.loads(printed.stdout) == openapi(), "the document must not depend on this machine's settings"


def test_migrate_prints_old_and_new_revision(postgres: str, loop: Loop, tmp_path: Path) -> None:
    loop.run(copy_database(postgres, "to_be_migrated", "template1"))
    dsn = in_database(postgres, "to_be_migrated")
    assert run("migrate", DATABASE_URL=dsn).stdout == f"Migrated the schema from nothing to {head()}.\n"
    assert run("migrate", DATABASE_URL=dsn).stdout == f"The schema is already at {head()}.\n"
    with later_revisions(tmp_path):
        migrated = CliRunner().invoke(cli, ["migrate"], env={"DATABASE_URL": dsn})
        assert migrated.stdout == f"Migrated the schema from {BASELINE} to {head()}.\n"
        downgrade(dsn, BASELINE)
    database = TestDatabase(dsn, loop)
    assert database.value("SELECT count(*) FROM jobs") == 0
    database.execute("UPDATE alembic_version SET version_num = '9999'")
    failed = run("migrate", DATABASE_URL=dsn)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.startswith("longshore: the schema is at 9999, which this release does not know"), failed.stderr
    database.close()


def test_unreachable_database_prints_one_line_with_its_address() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, but not listening
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        failed = run("migrate", DATABASE_URL=f"postgresql://u:hunter2@{address}/x")
    assert (failed.returncode, failed.stderr) == (1, f"longshore: the database refuses connections at {address}\n")


def test_call_without_command_lists_the_commands() -> None:
    listed = run()
    assert all(command in listed.stdout + listed.stderr for command in ("serve", "migrate", "openapi", "config"))


def test_unwritable_data_folder_prints_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    folder = tmp_path / "file" / "data"
    failed = run("migrate", LONGSHORE_DATA_DIR=str(folder))
    assert (failed.returncode, failed.stderr) == (1, f"longshore: {folder}/postgres: Not a directory\n")
