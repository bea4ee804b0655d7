"""A commit that waits for its standby keeps waiting.

If the wait is cancelled, the outcome is unknown. See docs/reliability/rules.md#r8 and #r9,
docs/reliability/faults.md#c13 and #c14.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import asyncpg
import httpx
import pytest

from app.db.pool import Database
from tests.api_client import Api, Json
from tests.broker import threaded_broker
from tests.conftest import wait_until
from tests.database import Loop, TestDatabase
from tests.faults.failover.server import Server
from tests.faults.postgres.conftest import StartServer, open_database, settings_with
from tests.polls import Background, metric_value

Eventually = Callable[[Callable[[], Any]], Any]
Call = Callable[[Api, Json], httpx.Response]

WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE $1"


@pytest.fixture
def server(start: StartServer) -> Server:
    return start()


@pytest.fixture
def primary(server: Server, loop: Loop) -> TestDatabase:
    return server.open(loop)


@pytest.fixture
def api(server: Server) -> Iterator[Api]:
    """Has spare connections, because maintenance services that write wait as well."""
    with threaded_broker(settings_with(notify=False, pool_size=40), server.dsn) as broker:
        yield Api(broker.http, "q")


def require_missing_standby(primary: TestDatabase) -> None:
    """Makes commits wait for a standby that does not exist."""
    primary.execute("ALTER SYSTEM SET synchronous_standby_names = 'missing'")
    primary.execute("SELECT pg_reload_conf()")
    wait_until(lambda: primary.loop.run(commit_waits(primary.dsn)))  # a reload takes effect some time after the call


async def commit_waits(dsn: str) -> bool:
    """Tries a commit. If it waits, cancels the wait, so that no session is left."""
    writer, watcher = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    commit = asyncio.create_task(writer.execute("SELECT pg_logical_emit_message(true, 'test', 'must be flushed')"))
    cancelled = None
    while not commit.done() and cancelled is None:
        cancelled = await watcher.fetchval(
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'SyncRep'",
            writer.get_server_pid(),
        )
    await commit
    await asyncio.gather(writer.close(), watcher.close())
    return cancelled is not None


def require_no_standby(primary: TestDatabase) -> None:
    primary.execute("ALTER SYSTEM RESET synchronous_standby_names")
    primary.execute("SELECT pg_reload_conf()")


def enqueue(api: Api, _claimed: Json) -> httpx.Response:
    return api.http.post("/jobs", json={"queue": "q", "job_type": "new"})


def claim(api: Api, _claimed: Json) -> httpx.Response:
    return api.http.post("/claim", json={"queues": ["q"]}, headers={"Idempotency-Key": "k"})


def complete(api: Api, claimed: Json) -> httpx.Response:
    return api.http.post(f"/jobs/{claimed['id']}/complete", json={"lease_token": claimed["lease_token"]})


def cancel_wait(primary: TestDatabase, pattern: str, call: "Future[httpx.Response]") -> bool:
    """Cancels waiting statements, as an operator does to get rid of hung ones.

    Before a statement waits, a cancel would roll it back, so only waiting ones are cancelled.
    """
    primary.rows(f"SELECT pg_cancel_backend(pid) FROM ({WAITING}) AS waiting", pattern)
    return call.done()


@pytest.mark.parametrize(
    ("call", "pattern"),
    [(enqueue, "%INSERT INTO jobs%"), (claim, "COMMIT%"), (complete, "/* complete */%")],
    ids=["enqueue", "claim in a transaction", "complete"],
)
def test_cancelled_wait_for_the_standby_is_never_reported_as_success(
    api: Api, primary: TestDatabase, background: Background, eventually: Eventually, call: Call, pattern: str
) -> None:
    api.enqueue_many(2)
    claimed = api.claim_one()
    require_missing_standby(primary)
    response = background.submit(call, api, claimed)
    eventually(lambda: cancel_wait(primary, pattern, response))
    problem = response.result().json()
    assert (problem["status"], problem.get("outcome")) == (503, "unknown")
    require_no_standby(primary)


def test_repeated_call_finds_the_job_whose_wait_was_cancelled(
    api: Api, primary: TestDatabase, background: Background, eventually: Eventually
) -> None:
    require_missing_standby(primary)
    body = {"queue": "q", "job_type": "new"}
    response = background.submit(api.http.post, "/jobs", json=body, headers={"Idempotency-Key": "k"})
    eventually(lambda: cancel_wait(primary, "%", response))
    assert response.result().json()["outcome"] == "unknown"
    require_no_standby(primary)
    assert api.enqueue(key="k", job_type="new")["id"] == str(primary.value("SELECT id FROM jobs"))


def test_write_keeps_waiting_for_its_standby_while_the_server_answers(
    api: Api, primary: TestDatabase, background: Background, eventually: Eventually
) -> None:
    require_missing_standby(primary)
    response = background.submit(enqueue, api, {})
    eventually(lambda: metric_value(api.http, "long_statements") > 0)
    readiness = api.get("/readyz")
    detail = next(check["detail"] for check in readiness["checks"] if check["name"] == "durability")
    assert (readiness["ready"], "have been running for more than 5 seconds" in detail) == (True, True)
    assert not response.done()
    require_no_standby(primary)
    assert response.result().status_code == 201


def test_cancelled_caller_does_not_cancel_the_wait_for_the_standby(
    server: Server, primary: TestDatabase, loop: Loop, eventually: Eventually
) -> None:
    """The driver would send a cancel request: the row would be visible to everyone, and only on the
    primary."""
    with open_database(server.dsn, loop) as db:
        loop.run(db.value("SELECT 1"))
        require_missing_standby(primary)
        for write in (write_in_autocommit, write_in_a_transaction):
            loop.run(start_and_cancel(db, write, primary))
        waiting = eventually(lambda: len(rows := primary.rows(WAITING, "%")) == 2 and rows)
        assert len(waiting) == 2
        assert primary.value("SELECT count(*) FROM leaders") == 0
        assert loop.run(db.value("SELECT 1")) == 1
    require_no_standby(primary)
    eventually(lambda: primary.value("SELECT count(*) FROM leaders") == 2)


async def write_in_autocommit(db: Database) -> None:
    await db.rows("INSERT INTO leaders (service, holder, held_until) VALUES ('alone', gen_random_uuid(), now())")


async def write_in_a_transaction(db: Database) -> None:
    async with db.transaction() as transaction:
        await transaction.rows(
            "INSERT INTO leaders (service, holder, held_until) VALUES ('together', gen_random_uuid(), now())"
        )


async def start_and_cancel(db: Database, write: Callable[[Database], Any], primary: TestDatabase) -> None:
    before = len(await primary._pool.fetch(WAITING, "%"))
    task = asyncio.create_task(write(db))
    while len(await primary._pool.fetch(WAITING, "%")) == before:
        pass
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


def test_broker_that_stops_during_a_wait_reports_an_unknown_outcome(
    server: Server, primary: TestDatabase, background: Background, eventually: Eventually
) -> None:
    """It neither waits forever nor closes the connection without a response. See
    docs/reliability/faults.md#b5."""
    with threaded_broker(settings_with(notify=False, pool_size=40, shutdown_seconds=1.0), server.dsn) as broker:
        api = Api(broker.http, "q")
        api.enqueue()
        require_missing_standby(primary)
        response = background.submit(
            httpx.post, f"{broker.base}/jobs", json={"queue": "q", "job_type": "new"}, timeout=60
        )
        eventually(lambda: primary.rows(WAITING, "%INSERT INTO jobs%"))
    problem = response.result(60).json()
    assert (problem["status"], problem["outcome"]) == (503, "unknown")
    require_no_standby(primary)
