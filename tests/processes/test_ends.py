"""How a broker process ends: killed, or asked to."""

import signal
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import httpx
import pytest

from tests.api import Api
from tests.broker import broker_process, threaded_broker
from tests.conftest import QUICK
from tests.database import TestDatabase
from tests.leases.conftest import ClaimStatements
from tests.polls import Background, parked

Eventually = Callable[[Callable[[], Any]], Any]


def broken(poll: "Future[Any]") -> bool:
    return isinstance(poll.exception(20), httpx.TransportError)


def test_a_killed_broker_takes_nothing_with_it(
    one: Api, common: TestDatabase, background: Background, eventually: Eventually
) -> None:
    with broker_process(common.dsn) as (broker, process):
        victim = Api(broker.http, one.queue)
        ids = {victim.enqueue()["id"] for _ in range(20)}
        held = victim.claim(max_jobs=5, key="k")["jobs"]
        polls = background.claims(5, victim, queues=["elsewhere"])
        eventually(lambda: parked(broker.http) == 5)
        process.kill()
        process.wait(30)
        assert all(broken(poll) for poll in polls)
    assert one.claim(key="k")["jobs"] == held
    assert all(one.complete(job)["status"] == "settled" for job in held)
    rest = one.claim(max_jobs=100)["jobs"]
    assert {job["id"] for job in held + rest} == ids


def test_a_terminated_broker_answers_its_parked_polls_and_goes(
    one: Api, common: TestDatabase, background: Background, eventually: Eventually
) -> None:
    with broker_process(common.dsn, max_wait_seconds="60") as (broker, process):
        claim = {"queues": [one.queue], "wait_seconds": 60}
        polls = [background.submit(broker.http.post, "/claim", json=claim) for _ in range(50)]
        eventually(lambda: parked(broker.http) == 50)
        process.send_signal(signal.SIGTERM)
        answers = [poll.result(20) for poll in polls]
        assert process.wait(30) == 0
    assert all(answer.json()["jobs"] == [] and answer.json()["poll_after_ms"] > 0 for answer in answers)
    assert {answer.headers.get("connection") for answer in answers} == {"close"}, (
        "who keeps connections must not use these again"
    )


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_claim_that_runs_when_the_broker_is_terminated_is_answered(
    one: Api,
    common: TestDatabase,
    background: Background,
    claim_statements: ClaimStatements,
    eventually: Eventually,
    sign: signal.Signals,
) -> None:
    job = one.enqueue()
    with broker_process(common.dsn, shutdown_seconds="60") as (broker, process):
        with claim_statements.held():
            claim = background.claim(Api(broker.http, one.queue))
            eventually(lambda: claim_statements.running() == 1)
            process.send_signal(sign)
            eventually(lambda: refuses(broker.base))
        held = claim.result(20)["jobs"]
        assert process.wait(30) == 0
    assert [got["id"] for got in held] == [job["id"]]
    assert one.complete(held[0])["status"] == "settled"


def refuses(base: str) -> bool:
    try:
        httpx.get(f"{base}/livez")
    except httpx.TransportError:
        return True
    return False


def test_a_draining_broker_is_not_ready_and_hands_out_nothing(common: TestDatabase, queue: str) -> None:
    with threaded_broker(QUICK, common.dsn) as broker:
        api = Api(broker.http, queue)
        job = api.enqueue()
        assert api.get("/readyz")["ready"] is True
        assert broker.broker_services is not None
        broker.broker_services.drain()
        readiness = api.get("/readyz", status=503)
        assert [check["name"] for check in readiness["checks"] if not check["ok"]] == ["serving"]
        answer = api.claim(wait_seconds=25)
        assert (answer["jobs"], answer["poll_after_ms"] > 0) == ([], True)
        assert api.job(job["id"])["state"] == "ready"
        assert api.get("/livez")["status"] == "alive"


def test_a_draining_broker_still_tells_a_repeated_claim_what_it_got(common: TestDatabase, queue: str) -> None:
    with threaded_broker(QUICK, common.dsn) as broker:
        api = Api(broker.http, queue)
        api.enqueue_many(2)
        held = api.claim_one(key="again")
        assert broker.broker_services is not None
        broker.broker_services.drain()
        assert api.claim_one(key="again")["lease_token"] == held["lease_token"]
        assert api.claim(key="another")["jobs"] == []
