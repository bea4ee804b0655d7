"""A broker with API keys, on a database of its own: a key on the shared database would lock the
other tests out.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.api_client import Api, Json
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import Loop, TestDatabase, create_database

ALL_SCOPES = ["enqueue", "work", "read", "manage"]
BUMP_KEY_VERSION = "UPDATE config_versions SET number = number + 1 WHERE name = 'api_keys'"
_caller_numbers = itertools.count(1)


class Key:
    """A created key, and a client that sends it."""

    def __init__(self, created: Json, api: Api) -> None:
        self.id: str = created["id"]
        self.name: str = created["name"]
        self.text: str = created["key"]
        self.api = api


class Callers:
    """Creates keys and clients that send them.

    All clients share one connection pool, because creating a pool takes longer than a call.
    """

    def __init__(self, base: str, pool: httpx.HTTPTransport, queue: str, admin: str) -> None:
        self._base = base
        self._pool = pool
        self._queue = queue
        self.admin = self.with_key(admin)

    def with_key(self, key: str | None, *, scheme: str = "Bearer") -> Api:
        headers = {} if key is None else {"Authorization": f"{scheme} {key}"}
        return Api(httpx.Client(base_url=self._base, headers=headers, transport=self._pool, timeout=60), self._queue)

    def key(self, *scopes: str, name: str | None = None, **quota: Any) -> Key:
        """Creates a key with a unique name, unless a name is given."""
        body = {"name": name or f"caller-{next(_caller_numbers)}", "scopes": scopes or ALL_SCOPES, **quota}
        created = self.admin.post("/api-keys", body, status=201)
        return Key(created, self.with_key(created["key"]))

    def api(self, *scopes: str, **quota: Any) -> Api:
        return self.key(*scopes, **quota).api

    def revoke(self, key: Key) -> Json:
        created: Json = self.admin.delete(f"/api-keys/{key.id}")
        return created


@pytest.fixture(scope="session")
def key_database(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, "api keys"), loop)
    yield database
    database.close()


@pytest.fixture(scope="package")
def keyed_broker(key_database: TestDatabase) -> Iterator[tuple[RunningBroker, str]]:
    """The broker, and its administrator key: the first key, which any caller on this machine may
    create.
    """
    key_database.execute("DELETE FROM api_keys")  # of earlier tests of this folder in the same run
    with threaded_broker(TEST_SETTINGS, key_database.dsn) as broker:
        response = broker.http.post("/api-keys", json={"name": "admin", "scopes": ALL_SCOPES})
        yield broker, response.raise_for_status().json()["key"]


@pytest.fixture(scope="package")
def pool() -> Iterator[httpx.HTTPTransport]:
    with httpx.HTTPTransport() as pool:
        yield pool


@pytest.fixture
def key_db(key_database: TestDatabase) -> TestDatabase:
    """A database that is empty except for the keys."""
    key_database.empty()
    return key_database


@pytest.fixture
def callers(
    keyed_broker: tuple[RunningBroker, str], pool: httpx.HTTPTransport, key_db: TestDatabase, queue: str
) -> Callers:
    return Callers(keyed_broker[0].base, pool, queue, keyed_broker[1])


@pytest.fixture
def admin(callers: Callers) -> Api:
    return callers.admin


@pytest.fixture
def expire(key_db: TestDatabase, eventually: Callable[..., Any]) -> Callable[[Key], None]:
    """Expires a key and waits until the broker rejects it."""

    def expire_key(key: Key) -> None:
        key_db.execute("UPDATE api_keys SET expires_at = now() - interval '1 second' WHERE id = $1", key.id)
        key_db.execute(BUMP_KEY_VERSION)
        eventually(lambda: key.api.http.get("/jobs").status_code == 401)

    return expire_key


@pytest.fixture(scope="package")
def second_broker(keyed_broker: tuple[RunningBroker, str], key_database: TestDatabase) -> Iterator[RunningBroker]:
    """A second broker on the same database, which learns of keys only from the database."""
    with threaded_broker(TEST_SETTINGS, key_database.dsn) as broker:
        yield broker
