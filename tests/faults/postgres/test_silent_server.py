"""A server that no longer answers, or whose replies are lost: the broker detects it, reports it,
and uses the server again when it is back. See docs/reliability/rules.md#r9,
docs/reliability/faults.md#c5, #c7, #c8 and #b8.
"""

import asyncio
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from app.db.pool import Database
from app.errors import DatabaseUnavailable
from tests.api.leases.conftest import WATCH_CLAIMS, ClaimStatements
from tests.api_client import Api
from tests.broker import threaded_broker
from tests.database import Loop, TestDatabase, create_database
from tests.faults.db.proxy import Proxy, proxy_to
from tests.faults.db.test_write_outcome import outcome
from tests.faults.failover.server import Server, children_of
from tests.faults.postgres.conftest import StartServer, open_database, settings_with
from tests.polls import Background

Eventually = Callable[[Callable[[], Any]], Any]


@pytest.fixture(scope="module")
def watched_database(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, "silence"), loop)
    database.execute(WATCH_CLAIMS)
    yield database
    database.close()


@pytest.fixture
def proxy(watched_database: TestDatabase) -> Iterator[Proxy]:
    with proxy_to(watched_database.dsn) as proxy:
        yield proxy


@pytest.fixture
def api(proxy: Proxy, queue: str) -> Iterator[Api]:
    with threaded_broker(settings_with(notify=False, silent_seconds=3.0), proxy.dsn) as broker:
        yield Api(broker.http, queue)


def readiness(api: Api) -> dict[str, str]:
    return {check["name"]: check["detail"] for check in api.http.get("/readyz").json()["checks"]}


def test_black_hole_is_detected_and_running_calls_are_unknown(
    api: Api, proxy: Proxy, watched_database: TestDatabase, background: Background, eventually: Eventually
) -> None:
    api.enqueue()
    claims = ClaimStatements(watched_database)
    with claims.held():
        claim = background.submit(api.http.post, "/claim", json={"queues": [api.queue]})
        eventually(lambda: claims.running() == 1)
        proxy.swallow("requests", "replies")
        assert outcome(claim.result(20)) == "unknown"
    eventually(lambda: readiness(api)["database"] == "the database does not answer")
    assert outcome(api.http.post("/jobs", json={"queue": api.queue, "job_type": "test"})) == "not_done"
    proxy.swallow()
    proxy.cut()
    eventually(lambda: api.http.get("/readyz").status_code == 200)
    api.enqueue()


def test_repeated_call_finds_the_job_whose_reply_was_lost(
    api: Api, proxy: Proxy, watched_database: TestDatabase, eventually: Eventually
) -> None:
    """The statement arrives and commits, but the reply is lost."""
    api.enqueue()
    proxy.swallow("replies")
    body = {"queue": api.queue, "job_type": "once"}
    response = api.http.post("/jobs", json=body, headers={"Idempotency-Key": api.queue})
    assert response.status_code == 503
    proxy.swallow()
    proxy.cut()
    eventually(lambda: api.http.get("/readyz").status_code == 200)
    job = api.post("/jobs", body, status=201, key=api.queue)
    assert [str(row["id"]) for row in watched_database.rows("SELECT id FROM jobs WHERE job_type = 'once'")] == [
        job["id"]
    ]


@contextmanager
def suspend(server: Server) -> Iterator[None]:
    """Stops every process of the server, as if its disk hung."""
    assert server._process is not None
    pids = [server._process.pid, *children_of(server._process.pid)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)


def test_hung_server_is_detected_and_used_again_when_it_resumes(
    start: StartServer, background: Background, eventually: Eventually
) -> None:
    server = start()
    with threaded_broker(
        settings_with(notify=False, silent_seconds=3.0, acquire_timeout_seconds=1.0), server.dsn
    ) as broker:
        api = Api(broker.http, "q")
        api.enqueue()
        with suspend(server):
            calls = [
                background.submit(api.http.post, "/jobs", json={"queue": "q", "job_type": "test"}) for _ in range(30)
            ]
            assert {outcome(call.result(30)) for call in calls} <= {"unknown", "not_done"}
            eventually(lambda: readiness(api)["database"] == "the database does not answer")
        eventually(lambda: api.http.get("/readyz").status_code == 200)
        api.enqueue()


def test_no_idle_connection_of_a_silent_server_is_used(proxy: Proxy, loop: Loop, eventually: Eventually) -> None:
    """A call on an idle connection does not ask the watchdog, so none may be left."""
    with open_database(proxy.dsn, loop, silent_seconds=2.0) as db:
        loop.run(db.value("SELECT 1"))
        idle = list(db._pool._idle)
        proxy.swallow("requests", "replies")
        eventually(lambda: db._watchdog._is_silent)
        assert [connection.is_closed() for connection in idle] == [True]
        with pytest.raises(DatabaseUnavailable, match="the database does not answer") as error:
            loop.run(db.value("SELECT 1"))
        assert error.value.outcome == "not_done"


def test_server_that_refuses_connections_is_not_silent(database: TestDatabase, loop: Loop) -> None:
    """A server that refuses connections answers.

    Running statements go on, and new calls get the server's own refusal.
    """
    database.execute("CREATE ROLE limited LOGIN CONNECTION LIMIT 0")
    try:
        with open_database(database.dsn.replace("postgres@", "limited@"), loop) as db:
            for _ in range(3):
                loop.run(db._watchdog.run_once())
            with pytest.raises(DatabaseUnavailable, match="the database has no free connection slot") as error:
                loop.run(db.value("SELECT 1"))
        assert error.value.outcome == "not_done"
    finally:
        database.execute("DROP ROLE limited")


def test_cancelled_callers_leave_no_open_transaction_and_lose_no_connection(database: TestDatabase, loop: Loop) -> None:
    with open_database(database.dsn, loop, pool_size=4) as db:
        assert loop.run(cancel_many(db, 300)) == []
        open_transactions = (
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE application_name = 'longshore' AND state LIKE 'idle in transaction%'"
        )
        assert loop.run(db.value(open_transactions)) == 0
        assert loop.run(all_at_once(db, 4)) == [0, 1, 2, 3]


async def cancel_many(db: Database, count: int) -> list[int]:
    """Returns the callers that got the result of another call."""
    wrong: list[int] = []

    async def query(number: int) -> None:
        if await db.value("SELECT $1::int FROM pg_sleep(0.002)", number) != number:
            wrong.append(number)
        async with db.transaction() as transaction:
            if await transaction.value("SELECT $1::int FROM pg_sleep(0.002)", number) != number:
                wrong.append(number)

    async def cancel(task: "asyncio.Task[None]") -> None:
        await asyncio.sleep(random.uniform(0, 0.02))
        task.cancel()

    tasks = [asyncio.create_task(query(number)) for number in range(count)]
    await asyncio.gather(*(cancel(task) for task in tasks))
    await asyncio.gather(*tasks, return_exceptions=True)
    return wrong


async def all_at_once(db: Database, count: int) -> list[int]:
    """Makes as many calls as the pool has connections.

    A lost connection would make one wait forever.
    """
    results: list[int] = await asyncio.gather(
        *(db.value("SELECT $1::int FROM pg_sleep(0.01)", number) for number in range(count))
    )
    return results
