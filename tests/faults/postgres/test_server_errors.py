"""Errors with which Postgres rejects a statement or ends a session, each provoked for real.

Afterwards everything works again.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import asyncpg
import pytest

from app.db.pool import Database
from app.errors import DatabaseUnavailable
from tests.api_client import Api
from tests.broker import threaded_broker
from tests.database import Loop, TestDatabase
from tests.faults.failover.server import Server
from tests.faults.postgres.conftest import StartServer, open_database, settings_with

Eventually = Callable[[Callable[[], Any]], Any]

FAIL_UNTIL = """
CREATE SEQUENCE tries;
CREATE FUNCTION fail_until(times int, state text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    try bigint := nextval('tries');  -- a rollback does not undo it
BEGIN
    IF try <= times THEN
        RAISE 'provoked' USING ERRCODE = state;
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
def fail_until(database: TestDatabase) -> Iterator[None]:
    database.execute(FAIL_UNTIL)
    yield
    database.execute("DROP FUNCTION fail_until; DROP SEQUENCE tries")


@pytest.mark.parametrize("state", ["40P01", "40001"], ids=["deadlock", "serialization failure"])
def test_statement_that_postgres_rolled_back_is_retried_once(
    db: Database, fail_until: None, loop: Loop, state: str
) -> None:
    assert loop.run(db.value("SELECT fail_until(1, $1)", state)) == 2


@pytest.mark.parametrize("state", ["40P01", "40001"], ids=["deadlock", "serialization failure"])
def test_outcome_is_not_done_if_the_retry_is_rolled_back_too(
    db: Database, fail_until: None, loop: Loop, state: str
) -> None:
    with pytest.raises(DatabaseUnavailable) as error:
        loop.run(db.value("SELECT fail_until(2, $1)", state))
    assert error.value.outcome == "not_done"


def test_server_ends_a_session_that_is_idle_in_transaction(db: Database, database: TestDatabase, loop: Loop) -> None:
    """A broker that was stopped in a transaction keeps its locks for ten seconds at most."""

    async def idle_in_transaction() -> None:
        async with db.transaction() as transaction:
            assert await transaction.value("SHOW idle_in_transaction_session_timeout") == "10s"
            await transaction.rows("SET idle_in_transaction_session_timeout = 50")
            pid = await transaction.value("SELECT pg_backend_pid()")
            while await database._pool.fetchval("SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid):
                pass
            await transaction.rows("SELECT 1")

    with pytest.raises(DatabaseUnavailable):
        loop.run(idle_in_transaction())
    assert loop.run(db.value("SELECT 1")) == 1


def test_transaction_with_a_suppressed_error_is_not_reported_as_committed(db: Database, loop: Loop) -> None:
    """Postgres answers the COMMIT with ROLLBACK and without an error."""

    async def suppress_an_error() -> None:
        async with db.transaction() as transaction:
            with suppress(asyncpg.DivisionByZeroError):
                await transaction.value("SELECT 1 / 0")

    with pytest.raises(AssertionError, match="was suppressed"):
        loop.run(suppress_an_error())


def kill(server: Server, _loop: Loop) -> None:
    """Kills all processes at once, and starts the server again."""
    server.kill()
    server.start()


def crash(server: Server, loop: Loop) -> None:
    """Kills one backend: the server ends all others and recovers on its own."""
    os.kill(
        server.open(loop).value("SELECT pid FROM pg_stat_activity WHERE application_name = 'longshore' LIMIT 1"),
        signal.SIGKILL,
    )


def restart(server: Server, _loop: Loop) -> None:
    server.stop()
    server.start()


@pytest.mark.parametrize("fault", [kill, crash, restart])
def test_acknowledged_jobs_survive_the_server_and_the_pool_reconnects(
    start: StartServer, loop: Loop, eventually: Eventually, fault: Callable[[Server, Loop], None]
) -> None:
    server = start()
    with threaded_broker(settings_with(notify=False), server.dsn) as broker:
        api = Api(broker.http, "q")
        ids = {api.enqueue()["id"] for _ in range(20)}
        fault(server, loop)
        eventually(lambda: api.http.get("/readyz").status_code == 200)
        assert {
            job["id"]
            for job in eventually(
                lambda: api.http.post("/claim", json={"queues": ["q"], "max_jobs": 100}).json().get("jobs")
            )
        } == ids
