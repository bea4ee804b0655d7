"""Commands that end by themselves: config, openapi, migrate; and what is said when something is wrong."""

import json
import os
import socket
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from app import RELEASE
from app.cli.commands import cli
from app.db.migrations import ROOT, downgrade, head
from app.settings import Settings
from tests.cli.command import run
from tests.contract.document import openapi
from tests.database import Loop, TestDatabase, _create, in_database

SECRETS = {
    "DATABASE_URL": "postgresql://longshore:hunter2@db.example/longshore?sslpassword=hunter3",
    "LONGSHORE_LISTEN_URL": "postgresql://direct:hunter4@db.example/longshore",
    "LONGSHORE_KEY_PEPPER": "hunter5",
}


def test_config_shows_every_setting_and_no_secret() -> None:
    shown = run("config", LONGSHORE_PORT="9999", **SECRETS)
    assert shown.returncode == 0
    names = [line.partition("=")[0] for line in shown.stdout.splitlines()]
    assert names == [
        "DATABASE_URL" if name == "database_url" else f"LONGSHORE_{name.upper()}" for name in Settings.model_fields
    ]
    assert "LONGSHORE_PORT=9999" in shown.stdout
    assert "hunter" not in shown.stdout + shown.stderr
    assert "DATABASE_URL=postgresql://longshore:***@db.example/longshore" in shown.stdout


def test_config_is_what_can_be_set_again() -> None:
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
def test_a_wrong_setting_is_one_line_that_names_it(command: str, name: str, value: str) -> None:
    failed = run(command, **{name: value})
    assert failed.returncode == 2, failed.stdout
    assert len(failed.stderr.splitlines()) == 1, failed.stderr
    assert failed.stderr.startswith(f"longshore: {name}: ")
    assert "hunter" not in failed.stderr


def test_texts_of_wrong_settings() -> None:
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
            "not a valid URL: escape special characters in the password, and name IPv6 hosts alone"
        ),
    }
    found = {(name, value): typed("config", **{name: value}) for name, value in cases}
    expected = {(name, value): (2, "", f"longshore: {name}: {text}\n") for (name, value), text in cases.items()}
    assert {case: (done.exit_code, done.stdout, done.stderr) for case, done in found.items()} == expected


def typed(*arguments: str, **given: str) -> Result:
    """The command without a process of its own, which takes seconds to start."""
    unset: dict[str, str | None] = {
        name: None for name in os.environ if name.startswith("LONGSHORE_") or name == "DATABASE_URL"
    }
    return CliRunner().invoke(cli, arguments, env=unset | given, catch_exceptions=False)


def test_empty_variables_count_as_unset() -> None:
    assert typed("config", DATABASE_URL="", LONGSHORE_PORT="", LONGSHORE_LISTEN_URL="").stdout == typed("config").stdout


def test_misspelt_variable_is_a_warning_with_the_nearest_name() -> None:
    shown = typed("config", LONGSHORE_PROT="1", LONGSHORE_QQQQQQQQQ="1", LONGSHORE_URL="http://127.0.0.1:8080")
    assert (shown.exit_code, shown.stdout) == (0, typed("config").stdout)
    assert shown.stderr.splitlines() == [
        "longshore: warning: LONGSHORE_PROT is not a setting: did you mean LONGSHORE_PORT?",
        "longshore: warning: LONGSHORE_QQQQQQQQQ is not a setting",
    ]
    warning, failure = run("serve", LONGSHORE_PROT="1", LONGSHORE_PORT="eighty").stderr.splitlines()
    assert json.loads(warning)["detail"] == "LONGSHORE_PROT is not a setting: did you mean LONGSHORE_PORT?"
    assert json.loads(failure)["event"] == "broker not started"


def test_wrong_setting_of_serve_is_a_log_line() -> None:
    failed = run("serve", LONGSHORE_PORT="eighty")
    assert failed.returncode == 2, failed.stdout
    line = json.loads(failed.stderr)
    assert (line["event"], line["level"]) == ("broker not started", "error")
    assert line["detail"].startswith("LONGSHORE_PORT: ")


def test_all_wrong_settings_are_named_at_once() -> None:
    failed = run("config", LONGSHORE_PORT="65536", LONGSHORE_LOG_LEVEL="loud")
    assert failed.returncode == 2
    assert len(failed.stderr.splitlines()) == 1, failed.stderr
    assert all(name in failed.stderr for name in ("LONGSHORE_PORT", "LONGSHORE_LOG_LEVEL"))


def test_openapi_prints_the_document() -> None:
    printed = run("openapi", LONGSHORE_MAX_BATCH_JOBS="7", DATABASE_URL="postgresql://nobody@nowhere/x")
    assert json.loads(printed.stdout) == openapi(), "whatever the settings of this machine are"


def test_migrate_says_from_which_revision_to_which(postgres: str, loop: Loop) -> None:
    loop.run(_create(postgres, "to_be_migrated", "template1"))
    dsn = in_database(postgres, "to_be_migrated")
    assert run("migrate", DATABASE_URL=dsn).stdout == f"Migrated the schema from nothing to {head()}.\n"
    assert run("migrate", DATABASE_URL=dsn).stdout == f"The schema is already at {head()}.\n"
    downgrade(dsn, "0006")
    assert run("migrate", DATABASE_URL=dsn).stdout == f"Migrated the schema from 0006 to {head()}.\n"
    database = TestDatabase(dsn, loop)
    assert database.value("SELECT count(*) FROM jobs") == 0
    database.execute("UPDATE alembic_version SET version_num = '9999'")
    failed = run("migrate", DATABASE_URL=dsn)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.startswith("longshore: the schema is at 9999, which this release does not know"), failed.stderr
    database.close()


def test_a_database_that_cannot_be_reached_is_one_line() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, but nobody listens
        failed = run("migrate", DATABASE_URL=f"postgresql://u:hunter2@127.0.0.1:{nobody.getsockname()[1]}/x")
    assert failed.returncode == 1
    assert len(failed.stderr.splitlines()) == 1, failed.stderr
    assert failed.stderr.startswith("longshore: ")
    assert "hunter" not in failed.stderr


def test_without_a_command_the_commands_are_listed() -> None:
    listed = run()
    assert all(command in listed.stdout + listed.stderr for command in ("serve", "migrate", "openapi", "config"))


def test_an_unwritable_data_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    failed = run("migrate", LONGSHORE_DATA_DIR=str(tmp_path / "file" / "data"))
    assert failed.returncode == 1
    assert len(failed.stderr.splitlines()) == 1, failed.stderr


def test_release_is_the_one_in_pyproject() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == RELEASE
