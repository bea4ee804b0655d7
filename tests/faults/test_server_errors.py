"""What Postgres itself says no with, or ends a session with, each provoked for real; and that everything works again afterwards."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import asyncpg
import pytest

from app.db.pool import Database
from app.errors import DatabaseUnavailable
from tests.api import Api
from tests.broker import threaded_broker
from tests.database import Loop, TestDatabase
from tests.failover.server import Server
from tests.faults.conftest import StartServer, open_database, settings_with

Eventually = Callable[[Callable[[], Any]], Any]

FAILS_AT_FIRST = """
CREATE SEQUENCE tries;
CREATE FUNCTION fail_until(times int, state text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    try bigint := nextval('tries');  -- a rollback does not take it back
BEGIN
    IF try <= times THEN
        RAISE 'as in a race' USING ERRCODE = state;
    END IF;
    RETURN try;
END
$$;
"""


@pytest.fixture
def db(database: TestDatabase, loop: Loop) -> Iterator[Database]:
    with open_database(database.dsn, loop) as db:
        yield db


@pytest.fixture
def failing(database: TestDatabase) -> Iterator[None]:
    database.execute(FAILS_AT_FIRST)
    yield
    database.execute("DROP FUNCTION fail_until; DROP SEQUENCE tries")


@pytest.mark.parametrize("state", ["40P01", "40001"], ids=["deadlock", "serialization failure"])
def test_statement_that_postgres_rolled_back_is_retried_once(db: Database, failing: None, loop: Loop, state: str) -> None:
    assert loop.run(db.value("SELECT fail_until(1, $1)", state)) == 2


@pytest.mark.parametrize("state", ["40P01", "40001"], ids=["deadlock", "serialization failure"])
def test_outcome_is_not_done_if_the_retry_is_rolled_back_too(db: Database, failing: None, loop: Loop, state: str) -> None:
    with pytest.raises(DatabaseUnavailable) as refusal:
        loop.run(db.value("SELECT fail_until(2, $1)", state))
    assert refusal.value.outcome == "not_done"


def test_server_ends_a_session_that_is_idle_in_transaction(
    db: Database, database: TestDatabase, loop: Loop
) -> None:
    """A broker that was stopped in the middle keeps its locks for ten seconds at most."""

    async def linger() -> None:
        async with db.transaction() as transaction:
            assert await transaction.value("SHOW idle_in_transaction_session_timeout") == "10s"
            await transaction.rows("SET idle_in_transaction_session_timeout = 50")
            pid = await transaction.value("SELECT pg_backend_pid()")
            while await database._pool.fetchval("SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid):
                pass
            await transaction.rows("SELECT 1")

    with pytest.raises(DatabaseUnavailable):
        loop.run(linger())
    assert loop.run(db.value("SELECT 1")) == 1


def test_transaction_with_a_suppressed_error_is_not_reported_as_committed(db: Database, loop: Loop) -> None:
    """Postgres answers its COMMIT with ROLLBACK, and no error."""

    async def swallow() -> None:
        async with db.transaction() as transaction:
            with suppress(asyncpg.DivisionByZeroError):
                await transaction.value("SELECT 1 / 0")

    with pytest.raises(AssertionError, match="nobody said so"):
        loop.run(swallow())


def killed(server: Server, _loop: Loop) -> None:
    """Everything at once, and started again."""
    server.kill()
    server.start()


def crashed(server: Server, loop: Loop) -> None:
    """One backend is killed: the server ends all others and recovers by itself."""
    os.kill(
        server.open(loop).value("SELECT pid FROM pg_stat_activity WHERE application_name = 'longshore' LIMIT 1"),
        signal.SIGKILL,
    )


def restarted(server: Server, _loop: Loop) -> None:
    server.stop()
    server.start()


@pytest.mark.parametrize("happen", [killed, crashed, restarted])
def test_acknowledged_jobs_survive_the_server_and_the_pool_reconnects(
    start: StartServer, loop: Loop, eventually: Eventually, happen: Callable[[Server, Loop], None]
) -> None:
    server = start()
    with threaded_broker(settings_with(notify=False), server.dsn) as broker:
        api = Api(broker.http, "q")
        ids = {api.enqueue()["id"] for _ in range(20)}
        happen(server, loop)
        eventually(lambda: api.http.get("/readyz").status_code == 200)
        assert {
            job["id"]
            for job in eventually(
                lambda: api.http.post("/claim", json={"queues": ["q"], "max_jobs": 100}).json().get("jobs")
            )
        } == ids
