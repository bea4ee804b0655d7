"""A commit that waits for its standby: it goes on waiting, and if the wait is cancelled its outcome is unknown (R8, R9, C13, C14)."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import asyncpg
import httpx
import pytest

from app.db.pool import Database
from tests.api import Api, Json
from tests.broker import threaded_broker
from tests.conftest import wait_until
from tests.database import Loop, TestDatabase
from tests.failover.server import Server
from tests.faults.conftest import StartServer, open_database, settings_with
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
    """With connections to spare: the chores that write will be waiting too."""
    with threaded_broker(settings_with(notify=False, pool_size=40), server.dsn) as broker:
        yield Api(broker.http, "q")


def without_standby(primary: TestDatabase) -> None:
    """From now on commits wait for somebody who is not there."""
    primary.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    primary.execute("SELECT pg_reload_conf()")
    wait_until(lambda: primary.loop.run(commit_waits(primary.dsn)))  # a reload is in force some time after the call


async def commit_waits(dsn: str) -> bool:
    """Tries one. If it waits, the wait is cancelled, which leaves no session behind."""
    writer, watcher = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    commit = asyncio.create_task(writer.execute("SELECT pg_logical_emit_message(true, 'test', 'has to be flushed')"))
    cancelled = None
    while not commit.done() and cancelled is None:
        cancelled = await watcher.fetchval(
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'SyncRep'",
            writer.get_server_pid(),
        )
    await commit
    await asyncio.gather(writer.close(), watcher.close())
    return cancelled is not None


def as_before(primary: TestDatabase) -> None:
    primary.execute("ALTER SYSTEM RESET synchronous_standby_names")
    primary.execute("SELECT pg_reload_conf()")


def enqueue(api: Api, _held: Json) -> httpx.Response:
    return api.http.post("/jobs", json={"queue": "q", "job_type": "new"})


def claim(api: Api, _held: Json) -> httpx.Response:
    return api.http.post("/claim", json={"queues": ["q"]}, headers={"Idempotency-Key": "k"})


def complete(api: Api, held: Json) -> httpx.Response:
    return api.http.post(f"/jobs/{held['id']}/complete", json={"lease_token": held["lease_token"]})


def cancelled(primary: TestDatabase, sign: str, call: "Future[httpx.Response]") -> bool:
    """As an operator who wants to get rid of what hangs. Before it waits, a cancel would undo it: only waiting ones are meant."""
    primary.rows(f"SELECT pg_cancel_backend(pid) FROM ({WAITING}) AS waiting", sign)
    return call.done()


@pytest.mark.parametrize(
    ("call", "sign"),
    [(enqueue, "%INSERT INTO jobs%"), (claim, "COMMIT%"), (complete, "/* complete */%")],
    ids=["enqueue", "claim in a transaction", "complete"],
)
def test_cancelled_wait_for_the_standby_is_never_reported_as_success(
    api: Api, primary: TestDatabase, background: Background, eventually: Eventually, call: Call, sign: str
) -> None:
    api.enqueue_many(2)
    held = api.claim_one()
    without_standby(primary)
    called = background.submit(call, api, held)
    eventually(lambda: cancelled(primary, sign, called))
    problem = called.result().json()
    assert (problem["status"], problem.get("outcome")) == (503, "unknown")
    as_before(primary)


def test_repeated_call_finds_the_job_whose_wait_was_cancelled(
    api: Api, primary: TestDatabase, background: Background, eventually: Eventually
) -> None:
    without_standby(primary)
    body = {"queue": "q", "job_type": "new"}
    called = background.submit(api.http.post, "/jobs", json=body, headers={"Idempotency-Key": "k"})
    eventually(lambda: cancelled(primary, "%", called))
    assert called.result().json()["outcome"] == "unknown"
    as_before(primary)
    assert api.enqueue(key="k", job_type="new")["id"] == str(primary.value("SELECT id FROM jobs"))


def test_write_keeps_waiting_for_its_standby_while_the_server_answers(
    api: Api, primary: TestDatabase, background: Background, eventually: Eventually
) -> None:
    without_standby(primary)
    called = background.submit(enqueue, api, {})
    eventually(lambda: metric_value(api.http, "long_statements") > 0)
    readiness = api.get("/readyz")
    told = next(check["detail"] for check in readiness["checks"] if check["name"] == "durability")
    assert (readiness["ready"], "running for long" in told) == (True, True)
    assert not called.done()
    as_before(primary)
    assert called.result().status_code == 201


def test_cancelled_caller_does_not_cancel_the_wait_for_the_standby(
    server: Server, primary: TestDatabase, loop: Loop, eventually: Eventually
) -> None:
    """The driver would send a cancel request: the row would be there for all to see, and on the primary alone."""
    with open_database(server.dsn, loop) as db:
        loop.run(db.value("SELECT 1"))
        without_standby(primary)
        for run in (alone, in_a_transaction):
            loop.run(started_and_cancelled(db, run, primary))
        waiting = eventually(lambda: len(found := primary.rows(WAITING, "%")) == 2 and found)
        assert len(waiting) == 2
        assert primary.value("SELECT count(*) FROM leaders") == 0
        assert loop.run(db.value("SELECT 1")) == 1
    as_before(primary)
    eventually(lambda: primary.value("SELECT count(*) FROM leaders") == 2)


async def alone(db: Database) -> None:
    await db.rows("INSERT INTO leaders (chore, holder, held_until) VALUES ('alone', gen_random_uuid(), now())")


async def in_a_transaction(db: Database) -> None:
    async with db.transaction() as transaction:
        await transaction.rows(
            "INSERT INTO leaders (chore, holder, held_until) VALUES ('together', gen_random_uuid(), now())"
        )


async def started_and_cancelled(db: Database, run: Callable[[Database], Any], primary: TestDatabase) -> None:
    before = len(await primary._pool.fetch(WAITING, "%"))
    task = asyncio.create_task(run(db))
    while len(await primary._pool.fetch(WAITING, "%")) == before:
        pass
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


def test_broker_that_stops_during_a_wait_reports_an_unknown_outcome(
    server: Server, primary: TestDatabase, background: Background, eventually: Eventually
) -> None:
    """It does not wait for ever, and does not go without a word (B5)."""
    with threaded_broker(settings_with(notify=False, pool_size=40, shutdown_seconds=1.0), server.dsn) as broker:
        api = Api(broker.http, "q")
        api.enqueue()
        without_standby(primary)
        called = background.submit(
            httpx.post, f"{broker.base}/jobs", json={"queue": "q", "job_type": "new"}, timeout=60
        )
        eventually(lambda: primary.rows(WAITING, "%INSERT INTO jobs%"))
    problem = called.result(60).json()
    assert (problem["status"], problem["outcome"]) == (503, "unknown")
    as_before(primary)
