"""A broker that asks for keys, on a database of its own: whoever made a key on the shared one would lock the other tests out."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.api import Api, Json
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import QUICK
from tests.database import Loop, TestDatabase, create_database

ALL_SCOPES = ["enqueue", "work", "read", "manage"]
CHANGED = "UPDATE versions SET number = number + 1 WHERE name = 'api_keys'"
_numbers = itertools.count(1)


class Key:
    """A key that was made, and the API as its holder sees it."""

    def __init__(self, told: Json, api: Api) -> None:
        self.id: str = told["id"]
        self.name: str = told["name"]
        self.text: str = told["key"]
        self.api = api


class Callers:
    """Makes keys, and clients that hold them. One pool of connections serves them all: to make one takes longer than a call."""

    def __init__(self, base: str, pool: httpx.HTTPTransport, queue: str, admin: str) -> None:
        self._base = base
        self._pool = pool
        self._queue = queue
        self.admin = self.holding(admin)

    def holding(self, key: str | None, *, scheme: str = "Bearer") -> Api:
        headers = {} if key is None else {"Authorization": f"{scheme} {key}"}
        return Api(httpx.Client(base_url=self._base, headers=headers, transport=self._pool, timeout=60), self._queue)

    def key(self, *scopes: str, name: str | None = None, **quota: Any) -> Key:
        """With a name of its own, unless one is given."""
        body = {"name": name or f"caller-{next(_numbers)}", "scopes": scopes or ALL_SCOPES, **quota}
        told = self.admin.post("/api-keys", body, status=201)
        return Key(told, self.holding(told["key"]))

    def api(self, *scopes: str, **quota: Any) -> Api:
        return self.key(*scopes, **quota).api

    def revoke(self, key: Key) -> Json:
        told: Json = self.admin.delete(f"/api-keys/{key.id}")
        return told


@pytest.fixture(scope="session")
def guarded_database(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, "api keys"), loop)
    yield database
    database.close()


@pytest.fixture(scope="package")
def guarded(guarded_database: TestDatabase) -> Iterator[tuple[RunningBroker, str]]:
    """The broker, and the key of its administrator: the first one, which anybody on this machine may make."""
    guarded_database.execute("DELETE FROM api_keys")  # of an earlier visit to this folder in the same run
    with threaded_broker(QUICK, guarded_database.dsn) as broker:
        made = broker.http.post("/api-keys", json={"name": "admin", "scopes": ALL_SCOPES})
        yield broker, made.raise_for_status().json()["key"]


@pytest.fixture(scope="package")
def pool() -> Iterator[httpx.HTTPTransport]:
    with httpx.HTTPTransport() as pool:
        yield pool


@pytest.fixture
def stored(guarded_database: TestDatabase) -> TestDatabase:
    """An empty database, but for the keys."""
    guarded_database.empty()
    return guarded_database


@pytest.fixture
def callers(guarded: tuple[RunningBroker, str], pool: httpx.HTTPTransport, stored: TestDatabase, queue: str) -> Callers:
    return Callers(guarded[0].base, pool, queue, guarded[1])


@pytest.fixture
def admin(callers: Callers) -> Api:
    return callers.admin


@pytest.fixture
def expire(stored: TestDatabase, eventually: Callable[..., Any]) -> Callable[[Key], None]:
    """Lets a key's time be over, and waits until the broker has heard."""

    def end(key: Key) -> None:
        stored.execute("UPDATE api_keys SET expires_at = now() - interval '1 second' WHERE id = $1", key.id)
        stored.execute(CHANGED)
        eventually(lambda: key.api.http.get("/jobs").status_code == 401)

    return end


@pytest.fixture(scope="package")
def another(guarded: tuple[RunningBroker, str], guarded_database: TestDatabase) -> Iterator[RunningBroker]:
    """A second broker on the same database, which knows only what it hears."""
    with threaded_broker(QUICK, guarded_database.dsn) as broker:
        yield broker
