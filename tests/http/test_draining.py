"""SIGTERM: requests that have begun are answered, and every connection is closed.

See docs/reliability/rules.md#r15.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest

from tests.broker import broker_process
from tests.database import Loop, TestDatabase, create_database
from tests.http.conftest import connections
from tests.http.raw_connection import GET, RawConnection, post
from tests.polls import Background, parked_polls

SLEEPING_TRIGGER = """
CREATE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_sleep(600);
    RETURN NEW;
END
$$;
CREATE TRIGGER sleep BEFORE UPDATE ON jobs FOR EACH ROW WHEN (NEW.priority = 13) EXECUTE FUNCTION sleep();
"""
SLEEPING_STATEMENTS = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
)
SLEEPING_READS = f"{SLEEPING_STATEMENTS} AND query LIKE '/* list_job_types */%'"
SLEEPING_VIEW = """
ALTER TABLE job_types RENAME TO stored_job_types;
CREATE VIEW job_types AS SELECT stored_job_types.* FROM stored_job_types, pg_sleep(600);
"""
NO_SLEEPING_VIEW = "DROP VIEW job_types; ALTER TABLE stored_job_types RENAME TO job_types"
CANCEL = post("/jobs/cancel", b'{"ids": []}')
LARGE_CANCEL = post("/jobs/cancel", b'{"ids": []}' + b" " * 100_000)
CLAIM = post("/claim", b'{"queues": ["always-empty"], "wait_seconds": 60}')


@pytest.fixture(scope="module")
def database(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, "draining"), loop)
    yield database
    database.close()


def statuses_and_ends(connection: RawConnection) -> list[tuple[int, str | None]]:
    return [(response.status, response.headers.get("connection")) for response in connection.responses()]


def is_refused(base: str) -> bool:
    with suppress(httpx.TransportError):
        httpx.get(f"{base}/livez")
        return False
    return True


def test_draining_broker_answers_requests_that_have_begun_and_closes_all_connections(
    database: TestDatabase, eventually: Callable[..., Any]
) -> None:
    with (
        broker_process(database.dsn, max_wait_seconds="60", shutdown_seconds="60", body_seconds="60") as (
            broker,
            process,
        ),
        connections(broker.base) as connect,
    ):
        new, idle, half_head, half_body, large_body, pipelined = (connect() for _ in range(6))
        for connection in (idle, half_head):
            connection.send(GET)
            assert connection.response().status == 200
        half_head.send(GET[:-2])
        half_body.send(CANCEL[:-1])
        large_body.send(LARGE_CANCEL[:-1])
        pipelined.send(CLAIM + GET + GET)
        eventually(lambda: parked_polls(broker.http) == 1)
        broker.http.close()
        process.send_signal(signal.SIGTERM)
        assert statuses_and_ends(pipelined) == [(200, None), (200, None), (200, "close")]
        assert [statuses_and_ends(connection) for connection in (new, idle, half_head)] == [[], [], []]
        eventually(lambda: is_refused(broker.base))
        for connection, request in ((half_body, CANCEL), (large_body, LARGE_CANCEL)):
            connection.send(request[-1:])
            assert statuses_and_ends(connection) == [(200, "close")]
        assert process.wait(30) == 0


def test_draining_broker_closes_a_connection_in_a_lingering_close(database: TestDatabase) -> None:
    with broker_process(database.dsn, header_seconds="600") as (broker, process), connections(broker.base) as connect:
        rejected = connect()
        rejected.send(b"nonsense\r\n\r\n")
        assert rejected.error_response().status == 400
        broker.http.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_request_of_the_framework_that_outlasts_the_shutdown_has_an_unknown_outcome(
    database: TestDatabase, background: Background, eventually: Callable[..., Any]
) -> None:
    database.execute(SLEEPING_TRIGGER)
    with broker_process(database.dsn, shutdown_seconds="1", log_level="error") as (broker, process):
        job_id = broker.http.post("/jobs", json={"job_type": "test"}).json()["id"]
        patch = background.submit(broker.http.patch, f"/jobs/{job_id}", json={"priority": 13})
        eventually(lambda: database.value(SLEEPING_STATEMENTS) == 1)
        process.send_signal(signal.SIGTERM)
        response = patch.result(30)
    problem = response.json()
    assert (response.status_code, problem["code"], problem["outcome"]) == (503, "database_unavailable", "unknown")
    assert response.headers["x-request-id"] == problem["instance"]


def test_read_that_outlasts_the_shutdown_was_not_done(
    database: TestDatabase, background: Background, eventually: Callable[..., Any]
) -> None:
    with broker_process(database.dsn, shutdown_seconds="1", log_level="error") as (broker, process):
        broker.http.put("/job-types/any", json={})
        database.execute(SLEEPING_VIEW)
        try:
            listed = background.submit(broker.http.get, "/job-types")
            eventually(lambda: database.value(SLEEPING_READS) == 1)
            process.send_signal(signal.SIGTERM)
            problem = listed.result(30).json()
        finally:
            database.execute(NO_SLEEPING_VIEW)
    assert (problem["code"], problem["outcome"]) == ("database_unavailable", "not_done")
