"""`python -m app keys`: works on the database directly, with or without running brokers."""

import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli.commands import cli
from tests.api.api_keys.conftest import Callers
from tests.api_client import parse_time
from tests.contract.cli.command import environment, run
from tests.contract.cli.test_serve import serving, stop, wait_until_started
from tests.database import TestDatabase
from tests.table import table

KEY = re.compile(r"lsk_[0-9a-f]{16}_[0-9a-f]{64}")


def invoke(*arguments: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    """Runs the command in this process, because a new one takes seconds to start."""
    result = CliRunner().invoke(cli, ["keys", *arguments], env=environment(**settings), catch_exceptions=False)
    return subprocess.CompletedProcess(arguments, result.exit_code, result.stdout, result.stderr)


@pytest.mark.slow
def test_command_line_creates_lists_and_revokes_a_key_while_a_broker_runs(
    callers: Callers, key_db: TestDatabase, eventually: Callable[..., Any]
) -> None:
    database = {"DATABASE_URL": key_db.dsn}
    options = [
        "--name",
        "from-the-terminal",
        "--scope",
        "read:email.*",
        "--scope",
        "work",
        "--max-leases",
        "3",
        "--days",
        "1",
    ]
    result = run("keys", "create", *options, **database)
    key = result.stdout.strip()
    assert KEY.fullmatch(key), result.stderr
    holder = callers.with_key(key).http
    eventually(lambda: holder.get("/jobs").status_code == 200)

    listed = invoke("list", **database).stdout
    (line,) = [line for line in listed.splitlines() if "from-the-terminal" in line]
    key_id = key.split("_")[1]
    assert all(text in line for text in (key_id, "read:email.*", "work"))
    assert key.split("_")[2] not in listed
    expiry = key_db.value(
        "SELECT to_char(expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI') FROM api_keys WHERE id = $1", key_id
    )
    assert line.endswith(f"  expires {expiry}")
    key_db.execute("UPDATE api_keys SET expires_at = created_at WHERE id = $1", key_id)
    (line,) = [line for line in invoke("list", **database).stdout.splitlines() if key_id in line]
    assert "  expired " in line
    key_db.execute("UPDATE api_keys SET expires_at = created_at + interval '1 day' WHERE id = $1", key_id)
    key_json = callers.admin.get(f"/api-keys/{key_id}")
    assert key_json["max_leases"] == 3
    assert round((parse_time(key_json["expires_at"]) - parse_time(key_json["created_at"])) / timedelta(hours=1)) == 24

    assert key_id in invoke("revoke", key_id, **database).stdout
    eventually(lambda: holder.get("/jobs").status_code == 401)


@table(
    ("arguments", "text"),
    [
        (["create", "--name", "n", "--scope", "root"], "scopes"),
        (["create", "--name", "n"], "--admin"),
        (["create", "--name", "a b", "--scope", "read"], "name must be 1 to 120"),
        (["create", "--name", "..", "--scope", "read"], "name must be 1 to 120"),
        (["create", "--name", "n", "--scope", "read:."], "scopes[0] must be enqueue, work, read, manage or admin"),
        (["create", "--name", "n", "--scope", "read", "--max-leases", "0"], "max_leases"),
        (["revoke", "0123456789abcdef"], "0123456789abcdef"),
    ],
)
def test_invalid_command_prints_one_clear_line(arguments: list[str], text: str, key_db: TestDatabase) -> None:
    assert_one_line(invoke(*arguments, DATABASE_URL=key_db.dsn), text)


def test_creating_a_third_key_of_one_name_prints_one_clear_line(callers: Callers, key_db: TestDatabase) -> None:
    for _ in range(2):
        callers.key(name="twice-already")
    assert_one_line(
        invoke("create", "--name", "twice-already", "--scope", "read", DATABASE_URL=key_db.dsn), "twice-already"
    )


def test_unreachable_or_unmigrated_database_prints_one_clear_line(postgres: str) -> None:
    unreachable = invoke("list", DATABASE_URL="postgresql://nobody@127.0.0.1:1/nowhere")
    assert_one_line(unreachable, "longshore: the database refuses connections at 127.0.0.1:1\n")
    assert_one_line(invoke("list", DATABASE_URL=postgres), "python -m app migrate`\n")


def assert_one_line(failed: "subprocess.CompletedProcess[str]", text: str) -> None:
    assert failed.returncode in (1, 2)
    assert failed.stdout == ""
    assert len(failed.stderr.splitlines()) == 1, failed.stderr
    assert failed.stderr.startswith("longshore: ")
    assert text in failed.stderr


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A data directory that the user of Postgres can access if the tests run as root."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name, "data")


@pytest.mark.slow
def test_command_line_creates_keys_in_an_embedded_postgres_with_or_without_a_broker(data_dir: Path) -> None:
    settings = {"LONGSHORE_DATA_DIR": str(data_dir)}
    first = run("keys", "create", "--name", "admin", "--scope", "manage", **settings)
    assert KEY.fullmatch(first.stdout.strip()), first.stderr
    with serving(data_dir) as process:
        wait_until_started(process)
        second = invoke("create", "--name", "worker", "--scope", "work", **settings)
        assert KEY.fullmatch(second.stdout.strip()), second.stderr
        listed = invoke("list", **settings).stdout
        stop(process, signal.SIGTERM, data_dir)
    assert [line.split()[1] for line in listed.splitlines()] == ["worker", "admin"]
