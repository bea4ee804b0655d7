"""A broker for which no key was ever made: open to this machine, shut to others unless somebody says so, and shut from the first key on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from app.__main__ import refuse_an_open_door
from tests.broker import Broker, broker_process, threaded_broker
from tests.cli.command import run
from tests.conftest import QUICK
from tests.database import Loop, TestDatabase, create_database

EVERYBODY = "0.0.0.0"


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


def make_key(broker: Broker) -> str:
    key: str = broker.http.post("/api-keys", json={"name": "first", "scopes": ["read"]}).raise_for_status().json()["key"]
    return key


def test_on_loopback_everybody_may_call_until_there_is_a_key(keyless: TestDatabase, eventually: Callable[..., Any]) -> None:
    with threaded_broker(QUICK, keyless.dsn) as one, threaded_broker(QUICK, keyless.dsn) as other:
        assert (called(one.http), called(other.http)) == (200, 200)
        assert called(one.http, "whatever") == 200
        key = make_key(one)
        assert (called(one.http), called(one.http, key)) == (401, 200)
        eventually(lambda: called(other.http) == 401)
        assert called(other.http, key) == 200


def test_another_address_is_refused_without_keys(keyless: TestDatabase) -> None:
    failed = run("serve", "--host", EVERYBODY, LONGSHORE_PORT="0", DATABASE_URL=keyless.dsn)
    assert failed.returncode == 2, failed.stdout
    assert len(failed.stderr.splitlines()) == 1, failed.stderr
    assert all(word in failed.stderr for word in (EVERYBODY, "keys create", "LONGSHORE_ALLOW_ANONYMOUS"))


def test_another_address_is_served_if_somebody_says_so_until_there_is_a_key(keyless: TestDatabase) -> None:
    with broker_process(keyless.dsn, host=EVERYBODY, allow_anonymous="true") as (broker, _):
        assert called(broker.http) == 200
        key = make_key(broker)
        assert (called(broker.http), called(broker.http, key)) == (401, 200)


@contextmanager
def elsewhere(dsn: str) -> Iterator[Broker]:
    """Served on every address, after the look that `serve` takes before."""
    settings = QUICK.model_copy(update={"host": EVERYBODY})
    refuse_an_open_door(settings, dsn)
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
