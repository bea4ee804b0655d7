"""A broker for which no key was ever made: open to this machine, shut to others unless somebody says so, and shut from the first key on."""

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

from app.cli.commands import require_keys_or_loopback
from tests.broker import RunningBroker, broker_process, threaded_broker
from tests.cli.command import environment, run
from tests.conftest import QUICK
from tests.database import Loop, TestDatabase, create_database

EVERYBODY = "0.0.0.0"
WARNING = "no live administrator key"


@pytest.fixture
def keyless(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    """A database without keys."""
    database = TestDatabase(create_database(postgres, loop, "keyless"), loop)
    database.execute("DELETE FROM api_keys")
    database.execute("UPDATE versions SET number = number + 1 WHERE name = 'api_keys'")
    yield database
    database.close()


def called(http: httpx.Client, key: str | None = None) -> int:
    return http.get("/jobs", headers={"Authorization": f"Bearer {key}"} if key else {}).status_code


def make_key(broker: RunningBroker) -> str:
    key: str = (
        broker.http.post("/api-keys", json={"name": "first", "scopes": ["admin"]}).raise_for_status().json()["key"]
    )
    return key


def test_on_loopback_everybody_may_call_until_there_is_a_key(
    keyless: TestDatabase, eventually: Callable[..., Any]
) -> None:
    with threaded_broker(QUICK, keyless.dsn) as one, threaded_broker(QUICK, keyless.dsn) as other:
        assert (called(one.http), called(other.http)) == (200, 200)
        assert called(one.http, "whatever") == 200
        key = make_key(one)
        assert (called(one.http), called(one.http, key)) == (401, 200)
        eventually(lambda: called(other.http) == 401)
        assert called(other.http, key) == 200


def test_command_line_warns_while_no_key_is_an_administrators(keyless: TestDatabase) -> None:
    """It only warns: with the database at hand an administrator's key can be made at any time."""

    def keys(*arguments: str) -> str:
        done = run("keys", *arguments, DATABASE_URL=keyless.dsn)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stderr)
        return done.stdout.strip()

    outputs: list[str] = []
    keys("create", "--name", "worker", "--scope", "work")
    admin = keys("create", "--name", "admin", "--scope", "manage", "--scope", "read")
    keys("revoke", admin.split("_")[1])
    assert ["no live key is an administrator's" in output for output in outputs] == [True, False, True], outputs
    assert [output for output in outputs if output and "--admin" not in output] == []


def test_log_warns_while_no_live_key_is_an_administrators(keyless: TestDatabase, tmp_path: Path) -> None:
    others = [["work"], ["enqueue", "work", "read"], ["manage:email.*"], ["admin:email.*"]]
    admins = [["admin"], ["manage"], ["manage:*", "read"], ["admin:*"]]
    wrong = {}
    for scopes in (*others, *admins):
        keyless.execute("DELETE FROM api_keys")
        warnings = warnings_of_first_key(keyless, tmp_path, scopes)
        if warnings != (["created"] if scopes in others else ["revoked"]):
            wrong[" ".join(scopes)] = warnings
    assert wrong == {}


def warnings_of_first_key(keyless: TestDatabase, folder: Path, scopes: list[str]) -> list[str]:
    """After which steps the log warns: the key is created, and then revoked by itself if it may do that."""
    file = folder / "broker.log"
    with broker_process(keyless.dsn, "sh", "-c", f'exec "$@" 2> {shlex.quote(str(file))}', "sh") as (broker, _):
        key = broker.http.post("/api-keys", json={"name": "first", "scopes": scopes}).raise_for_status().json()
        broker.http.delete(f"/api-keys/{key['id']}", headers={"Authorization": f"Bearer {key['key']}"})
    events = [line["event"] for line in map(json.loads, file.read_text().splitlines())]
    return [before.removeprefix("api key ") for before, event in pairwise(events) if event == WARNING]


def test_another_address_is_refused_without_keys(keyless: TestDatabase) -> None:
    failed = run("serve", "--host", EVERYBODY, LONGSHORE_PORT="0", DATABASE_URL=keyless.dsn)
    assert failed.returncode == 2, failed.stdout
    assert len(failed.stderr.splitlines()) == 1, failed.stderr
    assert all(word in failed.stderr for word in (EVERYBODY, "keys create", "LONGSHORE_ALLOW_ANONYMOUS"))


def test_the_command_that_a_refused_start_prints_makes_the_start_work(keyless: TestDatabase) -> None:
    settings = environment(LONGSHORE_PORT="0", DATABASE_URL=keyless.dsn)
    refused = run("serve", "--host", EVERYBODY, LONGSHORE_PORT="0", DATABASE_URL=keyless.dsn).stderr
    (command,) = re.findall("`(.+)`", refused)
    key = subprocess.run(command, shell=True, env=settings, capture_output=True, text=True, check=True).stdout.strip()
    with broker_process(keyless.dsn, host=EVERYBODY) as (broker, _):
        assert (called(broker.http), called(broker.http, key)) == (401, 200)
        (made,) = broker.http.get("/api-keys", headers={"Authorization": f"Bearer {key}"}).json()["items"]
        assert made["scopes"] == ["enqueue", "work", "read", "manage"]


def test_another_address_is_served_if_somebody_says_so_until_there_is_a_key(keyless: TestDatabase) -> None:
    with broker_process(keyless.dsn, host=EVERYBODY, allow_anonymous="true") as (broker, _):
        assert called(broker.http) == 200
        key = make_key(broker)
        assert (called(broker.http), called(broker.http, key)) == (401, 200)


@contextmanager
def elsewhere(dsn: str) -> Iterator[RunningBroker]:
    """Served on every address, after the look that `serve` takes before."""
    settings = QUICK.model_copy(update={"host": EVERYBODY})
    require_keys_or_loopback(settings, dsn)
    with threaded_broker(settings, dsn) as broker:
        yield broker


def test_another_address_is_served_to_who_has_a_key(keyless: TestDatabase) -> None:
    with threaded_broker(QUICK, keyless.dsn) as broker:
        key = make_key(broker)
    with elsewhere(keyless.dsn) as broker:
        assert (called(broker.http), called(broker.http, key)) == (401, 200)


def test_another_address_is_shut_while_the_database_cannot_say_whether_there_are_keys() -> None:
    """Served, as a broker may start before its database; but to nobody."""
    with elsewhere("postgresql://nobody@127.0.0.1:1/nowhere") as broker:
        assert broker.http.get("/livez").status_code == 200
        response = broker.http.get("/jobs")
    assert (response.status_code, response.json()["code"]) == (503, "database_unavailable")


def test_a_database_that_turns_out_to_hold_no_keys_opens_no_other_address(keyless: TestDatabase) -> None:
    """It was away when the address was looked at."""
    with threaded_broker(QUICK.model_copy(update={"host": EVERYBODY}), keyless.dsn) as broker:
        assert called(broker.http) == 401
