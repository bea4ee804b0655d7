"""`python -m app keys`: on the database itself, beside running brokers or without any."""

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
from tests.api import when
from tests.api_keys.conftest import Callers
from tests.cli.command import environment, run
from tests.cli.test_serve import serving, started, stop
from tests.database import TestDatabase

KEY = re.compile(r"lsk_[0-9a-f]{16}_[0-9a-f]{64}")


def typed(*arguments: str, **given: str) -> "subprocess.CompletedProcess[str]":
    """The command without a process of its own, which takes seconds to start."""
    result = CliRunner().invoke(cli, ["keys", *arguments], env=environment(**given), catch_exceptions=False)
    return subprocess.CompletedProcess(arguments, result.exit_code, result.stdout, result.stderr)


def test_a_key_is_made_listed_and_revoked_beside_a_running_broker(
    callers: Callers, stored: TestDatabase, eventually: Callable[..., Any]
) -> None:
    database = {"DATABASE_URL": stored.dsn}
    wanted = [
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
    made = run("keys", "create", *wanted, **database)
    key = made.stdout.strip()
    assert KEY.fullmatch(key), made.stderr
    holder = callers.holding(key).http
    eventually(lambda: holder.get("/jobs").status_code == 200)

    listed = typed("list", **database).stdout
    (line,) = [line for line in listed.splitlines() if "from-the-terminal" in line]
    key_id = key.split("_")[1]
    assert all(word in line for word in (key_id, "read:email.*", "work"))
    assert key.split("_")[2] not in listed
    expiry = stored.value(
        "SELECT to_char(expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI') FROM api_keys WHERE id = $1", key_id
    )
    assert line.endswith(f"  expires {expiry}")
    stored.execute("UPDATE api_keys SET expires_at = created_at WHERE id = $1", key_id)
    (line,) = [line for line in typed("list", **database).stdout.splitlines() if key_id in line]
    assert "  expired " in line
    stored.execute("UPDATE api_keys SET expires_at = created_at + interval '1 day' WHERE id = $1", key_id)
    told = callers.admin.get(f"/api-keys/{key_id}")
    assert told["max_leases"] == 3
    assert round((when(told["expires_at"]) - when(told["created_at"])) / timedelta(hours=1)) == 24

    assert key_id in typed("revoke", key_id, **database).stdout
    eventually(lambda: holder.get("/jobs").status_code == 401)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["create", "--name", "n", "--scope", "root"], "scopes"),
        (["create", "--name", "n"], "--admin"),
        (["create", "--name", "a b", "--scope", "read"], "name must be 1 to 120"),
        (["create", "--name", "..", "--scope", "read"], "name must be 1 to 120"),
        (["create", "--name", "n", "--scope", "read:."], "scopes[0] must be enqueue, work, read, manage or admin"),
        (["create", "--name", "n", "--scope", "read", "--max-leases", "0"], "max_leases"),
        (["revoke", "0123456789abcdef"], "0123456789abcdef"),
    ],
    ids=lambda found: found if isinstance(found, str) else "",
)
def test_what_cannot_be_done_is_one_clear_line(arguments: list[str], word: str, stored: TestDatabase) -> None:
    assert_one_line(typed(*arguments, DATABASE_URL=stored.dsn), word)


def test_a_third_key_of_one_name_is_one_clear_line(callers: Callers, stored: TestDatabase) -> None:
    for _ in range(2):
        callers.key(name="twice-already")
    assert_one_line(
        typed("create", "--name", "twice-already", "--scope", "read", DATABASE_URL=stored.dsn), "twice-already"
    )


def test_a_database_that_is_not_there_or_not_migrated_is_one_clear_line(postgres: str) -> None:
    assert_one_line(
        typed("list", DATABASE_URL="postgresql://nobody@127.0.0.1:1/nowhere"), "the database cannot be used"
    )
    assert_one_line(typed("list", DATABASE_URL=postgres), "python -m app migrate")


def assert_one_line(failed: "subprocess.CompletedProcess[str]", word: str) -> None:
    assert failed.returncode in (1, 2)
    assert failed.stdout == ""
    assert len(failed.stderr.splitlines()) == 1, failed.stderr
    assert failed.stderr.startswith("longshore: ")
    assert word in failed.stderr


@pytest.fixture
def folder() -> Iterator[Path]:
    """Open to the user that Postgres runs as when we are root."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name, "data")


def test_keys_are_made_with_an_embedded_postgres_whether_or_not_a_broker_runs(folder: Path) -> None:
    here = {"LONGSHORE_DATA_DIR": str(folder)}
    first = run("keys", "create", "--name", "admin", "--scope", "manage", **here)
    assert KEY.fullmatch(first.stdout.strip()), first.stderr
    with serving(folder) as process:
        started(process)
        second = typed("create", "--name", "worker", "--scope", "work", **here)
        assert KEY.fullmatch(second.stdout.strip()), second.stderr
        listed = typed("list", **here).stdout
        stop(process, signal.SIGTERM, folder)
    assert [line.split()[1] for line in listed.splitlines()] == ["worker", "admin"]
