"""A service that shares the database: its role was granted longshore_producer and nothing else, and has a schema of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg
import pytest

from tests.api import Api, Json
from tests.database import Loop, TestDatabase

# Roles belong to the server, which other databases of this run share: the role may be there already.
ARRIVES = """
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
    """A connection on which jobs are enqueued."""

    def __init__(self, dsn: str, loop: Loop, queue: str) -> None:
        self._loop = loop
        self._connection: Any = loop.run(asyncpg.connect(dsn))
        self.queue = queue

    def execute(self, sql: str) -> None:
        self._loop.run(self._connection.execute(sql))

    def value(self, sql: str, *args: object) -> Any:
        return self._loop.run(self._connection.fetchval(sql, *args))

    def enqueue(self, **fields: Any) -> str:
        """The id of the job: of this test's queue and of type test, unless it says otherwise."""
        named = {"job_type": "test", "queue": self.queue, **fields}
        arguments = ", ".join(f"{name} => ${number}" for number, name in enumerate(named, 1))
        return str(self.value(f"SELECT longshore_enqueue_v1({arguments})", *named.values()))

    def refused(self, **fields: Any) -> asyncpg.PostgresError:
        with pytest.raises(asyncpg.PostgresError) as refused:
            self.enqueue(**fields)
        return refused.value

    @contextmanager
    def transaction(self, end: str = "COMMIT") -> Iterator[None]:
        self.execute("BEGIN")
        yield
        self.execute(end)

    def close(self) -> None:
        self._loop.run(self._connection.close())


def as_shop(dsn: str) -> str:
    assert "//postgres@" in dsn
    return dsn.replace("//postgres@", "//shop@")


@pytest.fixture(scope="package")
def shared(database: TestDatabase) -> Iterator[TestDatabase]:
    """The broker's database, with the service in it."""
    database.execute(ARRIVES)
    yield database
    database.execute("DROP SCHEMA shop CASCADE")


@pytest.fixture
def shop(shared: TestDatabase, db: TestDatabase, queue: str) -> Iterator[Session]:
    """The service."""
    session = Session(as_shop(db.dsn), db.loop, queue)
    yield session
    session.close()


@pytest.fixture
def rival(shared: TestDatabase, db: TestDatabase, queue: str) -> Iterator[Session]:
    """The same service, on another connection."""
    session = Session(as_shop(db.dsn), db.loop, queue)
    yield session
    session.close()


@pytest.fixture
def owner(db: TestDatabase, queue: str) -> Iterator[Session]:
    """Who can see what the service has done, and has not committed yet: the function does the same for whoever calls it."""
    session = Session(db.dsn, db.loop, queue)
    yield session
    session.close()


class Asks:
    """Asks for the key, by either way; gives the id of the job that has it."""

    def __init__(self, shop: Session, api: Api) -> None:
        self.shop = shop
        self.api = api

    def by(self, way: str, key: str = "k", **fields: Any) -> str:
        return self.sql(key, **fields) if way == "sql" else self.http(key, **fields)["id"]

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
def poll_history(shop: Session, api: Api) -> Asks:
    api.configure()
    return Asks(shop, api)


def without_times(job: Json) -> Json:
    """What two jobs that were asked for alike have in common."""
    return {name: value for name, value in job.items() if name not in ("id", "created_at", "run_at")}
