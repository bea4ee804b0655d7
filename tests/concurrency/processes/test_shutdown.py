"""How a broker process ends: killed, or by a signal."""

import signal
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import httpx
import pytest

from tests.api.leases.conftest import ClaimStatements
from tests.api_client import Api
from tests.broker import broker_process, threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import TestDatabase
from tests.polls import Background, parked_polls

Eventually = Callable[[Callable[[], Any]], Any]


def is_disconnected(poll: "Future[Any]") -> bool:
    return isinstance(poll.exception(20), httpx.TransportError)


def test_killed_broker_loses_no_job_and_no_lease(
    first_api: Api, shared_db: TestDatabase, background: Background, eventually: Eventually
) -> None:
    with broker_process(shared_db.dsn) as (broker, process):
        victim = Api(broker.http, first_api.queue)
        ids = {victim.enqueue()["id"] for _ in range(20)}
        held = victim.claim(max_jobs=5, key="k")["jobs"]
        polls = background.claims(5, victim, queues=["elsewhere"])
        eventually(lambda: parked_polls(broker.http) == 5)
        process.kill()
        process.wait(30)
        assert all(is_disconnected(poll) for poll in polls)
    assert first_api.claim(key="k")["jobs"] == held
    assert all(first_api.complete(job)["status"] == "settled" for job in held)
    remaining = first_api.claim(max_jobs=100)["jobs"]
    assert {job["id"] for job in held + remaining} == ids


def test_terminated_broker_answers_its_waiting_pollers_and_exits(
    first_api: Api, shared_db: TestDatabase, background: Background, eventually: Eventually
) -> None:
    with broker_process(shared_db.dsn, max_wait_seconds="60") as (broker, process):
        claim = {"queues": [first_api.queue], "wait_seconds": 60}
        polls = [background.submit(broker.http.post, "/claim", json=claim) for _ in range(50)]
        eventually(lambda: parked_polls(broker.http) == 50)
        process.send_signal(signal.SIGTERM)
        responses = [poll.result(20) for poll in polls]
        assert process.wait(30) == 0
    assert all(response.json()["jobs"] == [] and response.json()["poll_after_ms"] > 0 for response in responses)
    assert {response.headers.get("connection") for response in responses} == {"close"}, (
        "clients must not reuse these connections"
    )


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_claim_that_runs_when_the_broker_is_terminated_is_answered(
    first_api: Api,
    shared_db: TestDatabase,
    background: Background,
    claim_statements: ClaimStatements,
    eventually: Eventually,
    signal_number: signal.Signals,
) -> None:
    job = first_api.enqueue()
    with broker_process(shared_db.dsn, shutdown_seconds="60") as (broker, process):
        with claim_statements.held():
            claim = background.claim(Api(broker.http, first_api.queue))
            eventually(lambda: claim_statements.running() == 1)
            process.send_signal(signal_number)
            eventually(lambda: refuses_connections(broker.base))
        held = claim.result(20)["jobs"]
        assert process.wait(30) == 0
    assert [got["id"] for got in held] == [job["id"]]
    assert first_api.complete(held[0])["status"] == "settled"


def refuses_connections(base: str) -> bool:
    try:
        httpx.get(f"{base}/livez")
    except httpx.TransportError:
        return True
    return False


def test_draining_broker_is_not_ready_and_claims_nothing(shared_db: TestDatabase, queue: str) -> None:
    with threaded_broker(TEST_SETTINGS, shared_db.dsn) as broker:
        api = Api(broker.http, queue)
        job = api.enqueue()
        assert api.get("/readyz")["ready"] is True
        assert broker.broker_services is not None
        broker.broker_services.drain()
        readiness = api.get("/readyz", status=503)
        assert [check["name"] for check in readiness["checks"] if not check["ok"]] == ["serving"]
        response = api.claim(wait_seconds=25)
        assert (response["jobs"], response["poll_after_ms"] > 0) == ([], True)
        assert api.job(job["id"])["state"] == "ready"
        assert api.get("/livez")["status"] == "alive"


def test_draining_broker_still_replays_a_claim_with_a_key(shared_db: TestDatabase, queue: str) -> None:
    with threaded_broker(TEST_SETTINGS, shared_db.dsn) as broker:
        api = Api(broker.http, queue)
        api.enqueue_many(2)
        held = api.claim_one(key="again")
        assert broker.broker_services is not None
        broker.broker_services.drain()
        assert api.claim_one(key="again")["lease_token"] == held["lease_token"]
        assert api.claim(key="another")["jobs"] == []
