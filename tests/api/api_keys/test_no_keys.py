"""A broker without any API key.

It accepts anonymous callers on loopback, on other addresses only if the settings allow that, and
none from the first key on.
"""

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cli.serving import require_keys_or_loopback
from tests.broker import RunningBroker, broker_process, threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.contract.cli.command import environment, run
from tests.database import Loop, TestDatabase, create_database

pytestmark = pytest.mark.slow

ALL_ADDRESSES = "0.0.0.0"
WARNING = "no live administrator key"


@pytest.fixture
def keyless_db(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    """A database without keys."""
    database = TestDatabase(create_database(postgres, loop, "keyless"), loop)
    database.execute("DELETE FROM api_keys")
    database.execute("UPDATE config_versions SET number = number + 1 WHERE name = 'api_keys'")
    yield database
    database.close()


def status_of(http: httpx.Client, key: str | None = None) -> int:
    return http.get("/jobs", headers={"Authorization": f"Bearer {key}"} if key else {}).status_code


def create_admin_key(broker: RunningBroker) -> str:
    key: str = (
        broker.http.post("/api-keys", json={"name": "first", "scopes": ["admin"]}).raise_for_status().json()["key"]
    )
    return key


def test_loopback_broker_accepts_anonymous_callers_until_the_first_key(
    keyless_db: TestDatabase, eventually: Callable[..., Any]
) -> None:
    with (
        threaded_broker(TEST_SETTINGS, keyless_db.dsn) as first,
        threaded_broker(TEST_SETTINGS, keyless_db.dsn) as second,
    ):
        assert (status_of(first.http), status_of(second.http)) == (200, 200)
        assert status_of(first.http, "whatever") == 200
        key = create_admin_key(first)
        assert (status_of(first.http), status_of(first.http, key)) == (401, 200)
        eventually(lambda: status_of(second.http) == 401)
        assert status_of(second.http, key) == 200


def test_list_of_no_keys_says_so(keyless_db: TestDatabase) -> None:
    listed = run("keys", "list", DATABASE_URL=keyless_db.dsn)
    assert (listed.returncode, listed.stdout) == (0, "")
    assert listed.stderr == "longshore: there is no API key, so callers need none\n"


def test_command_line_warns_while_there_is_no_administrator_key(keyless_db: TestDatabase) -> None:
    """It only warns, because with access to the database an administrator key can be created at any
    time.
    """

    def keys(*arguments: str) -> str:
        done = run("keys", *arguments, DATABASE_URL=keyless_db.dsn)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stderr)
        return done.stdout.strip()

    outputs: list[str] = []
    keys("create", "--name", "worker", "--scope", "work")
    admin = keys("create", "--name", "admin", "--scope", "manage", "--scope", "read")
    keys("revoke", admin.split("_")[1])
    assert ["no active key has the admin scope" in output for output in outputs] == [True, False, True], outputs
    assert [output for output in outputs if output and "--admin" not in output] == []


def test_log_warns_while_there_is_no_live_administrator_key(keyless_db: TestDatabase, tmp_path: Path) -> None:
    others = [["work"], ["enqueue", "work", "read"], ["manage:email.*"], ["admin:email.*"]]
    admins = [["admin"], ["manage"], ["manage:*", "read"], ["admin:*"]]
    mismatches = {}
    for scopes in (*others, *admins):
        keyless_db.execute("DELETE FROM api_keys")
        warnings = warnings_of_first_key(keyless_db, tmp_path, scopes)
        if warnings != (["created"] if scopes in others else ["revoked"]):
            mismatches[" ".join(scopes)] = warnings
    assert mismatches == {}


def warnings_of_first_key(keyless_db: TestDatabase, directory: Path, scopes: list[str]) -> list[str]:
    """The steps after which the log warns: the key is created, and then revokes itself if it has
    the scope.
    """
    file = directory / "broker.log"
    with broker_process(keyless_db.dsn, "sh", "-c", f'exec "$@" 2> {shlex.quote(str(file))}', "sh") as (broker, _):
        key = broker.http.post("/api-keys", json={"name": "first", "scopes": scopes}).raise_for_status().json()
        broker.http.delete(f"/api-keys/{key['id']}", headers={"Authorization": f"Bearer {key['key']}"})
    events = [line["event"] for line in map(json.loads, file.read_text().splitlines())]
    return [before.removeprefix("api key ") for before, event in pairwise(events) if event == WARNING]


def test_serve_on_a_public_address_fails_without_keys(keyless_db: TestDatabase) -> None:
    failed = run("serve", "--host", ALL_ADDRESSES, LONGSHORE_PORT="0", DATABASE_URL=keyless_db.dsn)
    assert failed.returncode == 2, failed.stdout
    assert len(failed.stderr.splitlines()) == 1, failed.stderr
    assert all(word in failed.stderr for word in (ALL_ADDRESSES, "keys create", "LONGSHORE_ALLOW_ANONYMOUS"))


def test_command_printed_by_a_failed_start_makes_the_start_succeed(keyless_db: TestDatabase) -> None:
    settings = environment(LONGSHORE_PORT="0", DATABASE_URL=keyless_db.dsn)
    failed = run("serve", "--host", ALL_ADDRESSES, LONGSHORE_PORT="0", DATABASE_URL=keyless_db.dsn).stderr
    (command,) = re.findall("`(.+)`", failed)
    key = subprocess.run(command, shell=True, env=settings, capture_output=True, text=True, check=True).stdout.strip()
    with broker_process(keyless_db.dsn, host=ALL_ADDRESSES) as (broker, _):
        assert (status_of(broker.http), status_of(broker.http, key)) == (401, 200)
        (created,) = broker.http.get("/api-keys", headers={"Authorization": f"Bearer {key}"}).json()["items"]
        assert created["scopes"] == ["enqueue", "work", "read", "manage"]


def test_allow_anonymous_serves_a_public_address_until_the_first_key(keyless_db: TestDatabase) -> None:
    with broker_process(keyless_db.dsn, host=ALL_ADDRESSES, allow_anonymous="true") as (broker, _):
        assert status_of(broker.http) == 200
        key = create_admin_key(broker)
        assert (status_of(broker.http), status_of(broker.http, key)) == (401, 200)


@contextmanager
def public_broker(dsn: str) -> Iterator[RunningBroker]:
    """A broker on all addresses, after the check that `serve` makes."""
    settings = TEST_SETTINGS.model_copy(update={"host": ALL_ADDRESSES})
    require_keys_or_loopback(settings, dsn)
    with threaded_broker(settings, dsn) as broker:
        yield broker


def test_broker_on_a_public_address_serves_callers_with_a_key(keyless_db: TestDatabase) -> None:
    with threaded_broker(TEST_SETTINGS, keyless_db.dsn) as broker:
        key = create_admin_key(broker)
    with public_broker(keyless_db.dsn) as broker:
        assert (status_of(broker.http), status_of(broker.http, key)) == (401, 200)


def test_broker_on_a_public_address_answers_503_while_the_database_is_unreachable() -> None:
    """A broker may start before its database, but it serves no caller until it has loaded the keys."""
    with public_broker("postgresql://nobody@127.0.0.1:1/nowhere") as broker:
        assert broker.http.get("/livez").status_code == 200
        response = broker.http.get("/jobs")
    assert (response.status_code, response.json()["code"]) == (503, "database_unavailable")


def test_broker_on_a_public_address_without_keys_rejects_anonymous_callers(keyless_db: TestDatabase) -> None:
    """The database was unreachable when `serve` checked for keys."""
    with threaded_broker(TEST_SETTINGS.model_copy(update={"host": ALL_ADDRESSES}), keyless_db.dsn) as broker:
        assert status_of(broker.http) == 401
