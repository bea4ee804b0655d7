"""Commands that end by themselves: config, openapi, migrate; and what is said when something is wrong."""

import json
import socket
from pathlib import Path

import pytest

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
    assert names == ["DATABASE_URL" if name == "database_url" else f"LONGSHORE_{name.upper()}" for name in Settings.model_fields]
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
        ("serve", "LONGSHORE_PORT", "eighty"),
        ("config", "LONGSHORE_MAX_WAIT_SECONDS", "61"),
        ("migrate", "DATABASE_URL", "mysql://u:hunter2@db/x"),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it(command: str, name: str, value: str) -> None:
    failed = run(command, **{name: value})
    assert failed.returncode == 2, failed.stdout
    assert len(failed.stderr.splitlines()) == 1, failed.stderr
    assert failed.stderr.startswith(f"longshore: {name}: ")
    assert "hunter" not in failed.stderr


def test_all_wrong_settings_are_named_at_once() -> None:
    failed = run("config", LONGSHORE_PORT="65536", LONGSHORE_LOG_LEVEL="loud")
    assert failed.returncode == 2
    assert len(failed.stderr.splitlines()) == 1, failed.stderr
    assert all(name in failed.stderr for name in ("LONGSHORE_PORT", "LONGSHORE_LOG_LEVEL"))


def test_openapi_prints_the_document() -> None:
    printed = run("openapi", LONGSHORE_MAX_BATCH_JOBS="7", DATABASE_URL="postgresql://nobody@nowhere/x")
    assert json.loads(printed.stdout) == openapi(), "whatever the settings of this machine are"


def test_migrate_brings_an_empty_database_to_the_newest_schema(postgres: str, loop: Loop) -> None:
    loop.run(_create(postgres, "to_be_migrated", "template1"))
    dsn = in_database(postgres, "to_be_migrated")
    for _ in range(2):
        assert run("migrate", DATABASE_URL=dsn).returncode == 0
    database = TestDatabase(dsn, loop)
    assert database.value("SELECT count(*) FROM jobs") == 0
    database.close()


def test_a_database_that_cannot_be_reached_is_one_line() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, but nobody listens
        failed = run("migrate", DATABASE_URL=f"postgresql://u:hunter2@127.0.0.1:{nobody.getsockname()[1]}/x")
    assert failed.returncode == 1
    assert len(failed.stderr.splitlines()) == 1, failed.stderr
    assert failed.stderr.startswith("longshore: ")
    assert "hunter" not in failed.stderr


def test_a_port_that_is_taken_is_one_line(dsn: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        failed = run("serve", "--port", str(taken.getsockname()[1]), DATABASE_URL=dsn)
    assert failed.returncode == 1
    assert len(failed.stderr.splitlines()) == 1, failed.stderr
    assert "in use" in failed.stderr


def test_without_a_command_the_commands_are_listed() -> None:
    listed = run()
    assert all(command in listed.stdout + listed.stderr for command in ("serve", "migrate", "openapi", "config"))


def test_an_unwritable_data_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    failed = run("migrate", LONGSHORE_DATA_DIR=str(tmp_path / "file" / "data"))
    assert failed.returncode == 1
    assert len(failed.stderr.splitlines()) == 1, failed.stderr
