"""GET /workers, and POST /workers/{id}/drain | stop | resume."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from app.broker import Broker
from app.workers import store
from tests.api_client import Api, Json, parse_time
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import Loop, TestDatabase
from tests.polls import Background
from tests.table import table


@pytest.fixture
def w1(queue: str) -> str:
    """A worker id that no other test uses: brokers cache directives for a moment."""
    return f"{queue}-w1"


@pytest.fixture
def w2(queue: str) -> str:
    return f"{queue}-w2"


def worker(api: Api, worker_id: str) -> Json:
    found: Json = next(worker for worker in api.get("/workers")["items"] if worker["worker_id"] == worker_id)
    return found


def test_claim_lists_the_worker(api: Api, w1: str) -> None:
    response = api.claim(worker_id=w1)
    seen = worker(api, w1)
    assert (seen["directive"], seen["held_leases"]) == ("run", 0)
    assert seen["last_seen_at"] >= response["server_time"][:10]


def test_heartbeat_lists_the_worker(api: Api, w1: str) -> None:
    api.heartbeat(w1)
    assert worker(api, w1)["held_leases"] == 0


def test_next_request_updates_last_seen_at(api: Api, w1: str, db: TestDatabase) -> None:
    api.claim(worker_id=w1)
    api.get("/workers")
    db.execute("UPDATE workers SET last_seen_at = last_seen_at - interval '1 hour'")
    before = worker(api, w1)["last_seen_at"]
    api.heartbeat(w1)
    assert parse_time(worker(api, w1)["last_seen_at"]) > parse_time(before)


def test_held_leases_counts_unsettled_jobs(api: Api, w1: str, w2: str) -> None:
    api.enqueue_many(4)
    jobs = api.claim(worker_id=w1, max_jobs=3)["jobs"]
    api.claim(worker_id=w2)
    assert [worker(api, name)["held_leases"] for name in (w1, w2)] == [3, 1]
    api.complete(jobs[0])
    api.release(jobs[1])
    assert worker(api, w1)["held_leases"] == 1


def test_claim_without_worker_id_lists_no_worker(api: Api) -> None:
    api.enqueue()
    api.claim_one()
    assert api.get("/workers") == {"items": []}


def test_worker_list_is_paged_in_id_order(api: Api) -> None:
    names = [f"w{n}" for n in range(7)]
    for name in reversed(names):
        api.claim(worker_id=name)
    pages = api.pages("/workers", limit=3)
    assert [[worker["worker_id"] for worker in page] for page in pages] == [names[:3], names[3:6], names[6:]]


def test_worker_list_rejects_an_unknown_state_with_a_pointer(api: Api) -> None:
    assert api.get("/workers", state="run", status=422)["errors"][0]["pointer"] == "/query/state"


@pytest.mark.parametrize("directive", ["drain", "stop"])
def test_draining_or_stopping_worker_gets_no_jobs(api: Api, w1: str, w2: str, directive: str) -> None:
    api.enqueue()
    api.claim(worker_id=w1, queues=["empty"])
    assert api.post(f"/workers/{w1}/{directive}")["directive"] == directive
    response = api.claim(worker_id=w1, wait_seconds=20)
    assert (response["jobs"], response["directive"], response["poll_after_ms"] > 0) == ([], directive, True)
    assert api.claim_one(worker_id=w2)["attempt"] == 1


@pytest.mark.parametrize("directive", ["drain", "stop"])
def test_heartbeat_returns_the_directive_and_still_extends_leases(api: Api, w1: str, directive: str) -> None:
    api.enqueue()
    job = api.claim_one(worker_id=w1)
    assert api.heartbeat(w1, job)["directive"] == "run"
    directed = api.post(f"/workers/{w1}/{directive}")
    assert directed["held_leases"] == 1
    response = api.heartbeat(w1, job)
    assert (response["directive"], response["leases"][0]["status"], response["leases"][0]["action"]) == (
        directive,
        "extended",
        "continue",
    )
    assert api.complete(job)["status"] == "settled"


def test_drained_worker_can_still_settle_with_a_claim(api: Api, w1: str) -> None:
    api.enqueue_many(2)
    job = api.claim_one(worker_id=w1)
    api.post(f"/workers/{w1}/drain")
    settled = {"job_id": job["id"], "lease_token": job["lease_token"], "outcome": "complete"}
    response = api.claim(worker_id=w1, settle=[settled])
    assert ([result["status"] for result in response["settled"]], response["jobs"]) == (["settled"], [])


def test_resumed_worker_gets_jobs_again(api: Api, w1: str) -> None:
    api.claim(worker_id=w1)
    api.post(f"/workers/{w1}/stop")
    assert api.post(f"/workers/{w1}/resume")["directive"] == "run"
    api.enqueue()
    assert api.claim_one(worker_id=w1)["attempt"] == 1
    assert api.heartbeat(w1)["directive"] == "run"


def test_last_directive_of_a_worker_wins(api: Api, w1: str) -> None:
    api.claim(worker_id=w1)
    for directive in ("drain", "stop", "drain"):
        api.post(f"/workers/{w1}/{directive}")
        assert api.heartbeat(w1)["directive"] == directive
    assert worker(api, w1)["directive"] == "drain"


@pytest.mark.parametrize("directive", ["drain", "stop"])
def test_waiting_poll_returns_when_its_worker_gets_a_directive(
    api: Api, w1: str, w2: str, directive: str, background: Background, eventually: Callable[..., Any]
) -> None:
    poll = background.submit(api.claim, worker_id=w1, wait_seconds=30)
    other = background.submit(api.claim, worker_id=w2, wait_seconds=30)
    eventually(lambda: api.get("/stats")["waiting_polls"] == 2)
    api.post(f"/workers/{w1}/{directive}")
    response = poll.result()
    assert (response["jobs"], response["directive"]) == ([], directive)
    assert not other.done()
    api.enqueue()
    assert len(other.result()["jobs"]) == 1


@pytest.mark.slow
def test_directive_reaches_a_worker_that_polls_another_broker(
    api: Api, w1: str, dsn: str, background: Background, eventually: Callable[..., Any]
) -> None:
    with threaded_broker(TEST_SETTINGS, dsn) as broker:
        other = Api(broker.http, api.queue)
        poll = background.submit(other.claim, worker_id=w1, wait_seconds=30)
        eventually(lambda: api.get("/workers")["items"])
        api.post(f"/workers/{w1}/drain")
        assert poll.result()["directive"] == "drain"


@table("verb", ["drain", "stop", "resume"])
def test_directive_for_an_unknown_worker_is_rejected(api: Api, verb: str) -> None:
    assert api.post(f"/workers/unknown/{verb}", status=404)["code"] == "not_found"
    assert api.post(f"/workers/a b/{verb}", status=422)["errors"][0]["pointer"] == "/path/worker_id"


def test_worker_ids_beyond_the_limit_of_a_key_are_served_but_not_listed(isolated_db: TestDatabase, queue: str) -> None:
    with threaded_broker(TEST_SETTINGS.model_copy(update={"max_workers_per_key": 3}), isolated_db.dsn) as broker:
        api = Api(broker.http, queue)
        api.enqueue_many(6)
        held = [api.claim_one(worker_id=f"{queue}-{number}") for number in range(5)]
        api.heartbeat(f"{queue}-5", held[4])
        api.heartbeat(f"{queue}-0", held[0])
        assert [found["worker_id"] for found in api.get("/workers")["items"]] == [
            f"{queue}-{number}" for number in range(3)
        ]
        assert "longshore_workers_not_listed_total 3.0" in api.http.get("/metrics").text
        assert api.claim(worker_id=f"{queue}-new")["directive"] == "run"
        api.post(f"/workers/{queue}-4/drain", status=404)
        api.post(f"/workers/{queue}-0/drain")
        assert api.get("/limits")["max_workers_per_key"] == 3


def test_write_of_seen_workers_waits_for_a_running_write(
    isolated_services: Broker, isolated_db: TestDatabase, loop: Loop, w1: str
) -> None:
    """The background service may have taken the worker that a caller is about to list or drain."""
    finished: list[str] = []

    async def write(caller: str) -> None:
        await isolated_services.workers._seen.write()
        finished.append(caller)

    async def write_twice() -> None:
        isolated_services.workers.record_seen(w1, "")
        await asyncio.gather(write("background service"), write("GET /workers"))

    loop.run(write_twice())
    assert finished == ["background service", "GET /workers"]
    assert isolated_db.value("SELECT id FROM workers") == w1


def test_several_brokers_together_do_not_exceed_the_rows_of_workers(
    isolated_services: Broker, isolated_db: TestDatabase, loop: Loop, w1: str
) -> None:
    """A broker that has restarted does not know which workers it listed before."""
    infra = isolated_services.infra
    for number in range(4):
        loop.run(store.record_workers(infra.db, [w1, f"{w1}-{number}"], infra.now(), 4))
    assert isolated_db.value("SELECT count(*) FROM workers") == 3
    assert isolated_db.value("SELECT last_seen_at FROM workers WHERE id = $1", w1) > isolated_db.value(
        "SELECT last_seen_at FROM workers WHERE id = $1", f"{w1}-1"
    )
