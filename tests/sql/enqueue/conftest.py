"""A service (`shop`) in the same database: its role has longshore_producer and its own schema."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg
import pytest

from tests.api_client import Api, Json
from tests.database import Loop, TestDatabase

# Roles belong to the server, which the other databases of this test run share: the role may exist.
CREATE_SHOP = """
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'shop') THEN
        CREATE ROLE shop LOGIN IN ROLE longshore_producer;
    END IF;
END
$$;
DROP SCHEMA IF EXISTS shop CASCADE;
CREATE SCHEMA shop AUTHORIZATION shop;
"""


class Session:
    """A connection that enqueues jobs."""

    def __init__(self, dsn: str, loop: Loop, queue: str) -> None:
        self._loop = loop
        self._connection: Any = loop.run(asyncpg.connect(dsn))
        self.queue = queue

    def execute(self, sql: str) -> None:
        self._loop.run(self._connection.execute(sql))

    def value(self, sql: str, *args: object) -> Any:
        return self._loop.run(self._connection.fetchval(sql, *args))

    def enqueue(self, **fields: Any) -> str:
        """Enqueues a job of this test's queue and of type `test` by default. Returns its id."""
        parameters = {"job_type": "test", "queue": self.queue, **fields}
        arguments = ", ".join(f"{name} => ${number}" for number, name in enumerate(parameters, 1))
        return str(self.value(f"SELECT longshore_enqueue_v1({arguments})", *parameters.values()))

    def enqueue_error(self, **fields: Any) -> asyncpg.PostgresError:
        with pytest.raises(asyncpg.PostgresError) as error:
            self.enqueue(**fields)
        return error.value

    @contextmanager
    def transaction(self, end: str = "COMMIT") -> Iterator[None]:
        self.execute("BEGIN")
        yield
        self.execute(end)

    def close(self) -> None:
        self._loop.run(self._connection.close())


def shop_dsn(dsn: str) -> str:
    assert "//postgres@" in dsn
    return dsn.replace("//postgres@", "//shop@")


@pytest.fixture(scope="package")
def shared_database(database: TestDatabase) -> Iterator[TestDatabase]:
    """The broker's database, with the role and the schema of the service."""
    database.execute(CREATE_SHOP)
    yield database
    database.execute("DROP SCHEMA shop CASCADE")


@pytest.fixture
def shop(shared_database: TestDatabase, db: TestDatabase, queue: str) -> Iterator[Session]:
    """A session of the role `shop`, a service that enqueues by SQL."""
    session = Session(shop_dsn(db.dsn), db.loop, queue)
    yield session
    session.close()


@pytest.fixture
def other_session(shared_database: TestDatabase, db: TestDatabase, queue: str) -> Iterator[Session]:
    """Another session of the role `shop`."""
    session = Session(shop_dsn(db.dsn), db.loop, queue)
    yield session
    session.close()


@pytest.fixture
def owner_session(db: TestDatabase, queue: str) -> Iterator[Session]:
    """A session of the owner, which can read the jobs that it has enqueued and not committed yet.

    The function does the same for every caller.
    """
    session = Session(db.dsn, db.loop, queue)
    yield session
    session.close()


class KeyedEnqueues:
    """Enqueues jobs with a unique key by SQL or over HTTP.

    Returns the id of the job that has the key.
    """

    def __init__(self, shop: Session, api: Api) -> None:
        self.shop = shop
        self.api = api

    def via(self, source: str, key: str = "k", **fields: Any) -> str:
        return self.sql(key, **fields) if source == "sql" else self.http(key, **fields)["id"]

    def sql(self, key: str = "k", **fields: Any) -> str:
        if "for_seconds" in fields:
            fields["unique_for_seconds"] = fields.pop("for_seconds")
        return self.shop.enqueue(unique_key=key, **fields)

    def http(self, key: str = "k", **fields: Any) -> Json:
        unique = {name: fields.pop(name) for name in ("for_seconds", "on_duplicate") if name in fields}
        body: Json = {"queue": self.api.queue, "job_type": "test", "unique": {"key": key, **unique}, **fields}
        answer: Json = self.api.http.post("/jobs", json=body).json()
        return answer


@pytest.fixture
def keyed(shop: Session, api: Api) -> KeyedEnqueues:
    api.configure()
    return KeyedEnqueues(shop, api)


def without_times(job: Json) -> Json:
    """The fields that two equal requests have in common."""
    return {name: value for name, value in job.items() if name not in ("id", "created_at", "run_at")}
