"""A commit waits for a lost standby.

It is acknowledged only when the standby has it, even if an operator cancels the wait.
"""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.api_client import Api, Json
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import Loop
from tests.faults.failover.cluster import SYNCHRONOUS, Pair, start_pair
from tests.faults.failover.server import Server
from tests.polls import Background, metric_value

Eventually = Callable[[Callable[[], Any]], Any]
Call = Callable[[], httpx.Response]

JOBS = "SELECT count(*) FROM jobs"


@pytest.fixture(scope="module")
def synchronous(template: Server, loop: Loop) -> Iterator[Pair]:
    """Shared by all tests: each restores the link that it has broken."""
    with start_pair(template, loop, SYNCHRONOUS) as servers:
        yield servers


@pytest.fixture(scope="module")
def waiting_broker(synchronous: Pair) -> Iterator[RunningBroker]:
    with threaded_broker(TEST_SETTINGS, synchronous.dsn) as broker:
        yield broker


@pytest.fixture
def api(waiting_broker: RunningBroker, queue: str) -> Api:
    return Api(waiting_broker.http, queue)


def call_and_cancel_waits(servers: Pair, background: Background, eventually: Eventually, call: Call) -> httpx.Response:
    """Makes the call, and cancels every statement that waits for the standby until the call
    returns, as an operator would (pg_cancel_backend)."""
    response = background.submit(call)

    def cancel_waits() -> bool:
        for pid in servers.waiting_pids():
            servers.on_primary.value("SELECT pg_cancel_backend($1)", pid)
        return response.done()

    eventually(cancel_waits)
    return response.result()


def outcome(response: httpx.Response) -> Any:
    problem: Json = response.json()
    assert (response.status_code, problem["code"]) == (503, "database_unavailable"), problem
    return problem["outcome"]


def test_enqueue_with_a_cancelled_wait_is_unknown_until_replicated(
    synchronous: Pair, api: Api, background: Background, eventually: Eventually
) -> None:
    api.enqueue()
    synchronous.break_link()
    body = {"queue": api.queue, "job_type": "test"}
    before = synchronous.on_primary.value(JOBS)

    def call() -> httpx.Response:
        return api.http.post("/jobs", json=body, headers={"Idempotency-Key": "k"})

    assert outcome(call_and_cancel_waits(synchronous, background, eventually, call)) == "unknown"
    assert synchronous.on_primary.value(JOBS) == before + 1
    # The job is on the primary, but a failover would lose it: a repeated call is unknown, too.
    assert outcome(call_and_cancel_waits(synchronous, background, eventually, call)) == "unknown"
    synchronous.restore_link()
    job = call()
    assert (job.status_code, call().json()["id"]) == (201, job.json()["id"])
    synchronous.wait_for_replay()
    assert synchronous.on_standby.value(JOBS) == before + 1


@pytest.mark.parametrize("verb", ["complete", "release"])
def test_settlement_with_a_cancelled_wait_is_unknown_until_replicated(
    synchronous: Pair, api: Api, background: Background, eventually: Eventually, verb: str
) -> None:
    api.enqueue()
    claimed = api.claim_one()
    synchronous.break_link()

    def call() -> httpx.Response:
        return api.http.post(f"/jobs/{claimed['id']}/{verb}", json={"lease_token": claimed["lease_token"]})

    for _ in range(2):
        assert outcome(call_and_cancel_waits(synchronous, background, eventually, call)) == "unknown"
    synchronous.restore_link()
    assert call().json()["status"] == "already_settled"
    synchronous.wait_for_replay()
    assert (
        synchronous.on_standby.value("SELECT count(*) FROM jobs WHERE id = $1 AND state = 'running'", claimed["id"])
        == 0
    )


def test_claim_with_a_cancelled_wait_is_unknown_until_replicated(
    synchronous: Pair, api: Api, background: Background, eventually: Eventually
) -> None:
    job = api.enqueue()
    synchronous.break_link()

    def call() -> httpx.Response:
        return api.http.post("/claim", json={"queues": [api.queue]}, headers={"Idempotency-Key": "k"})

    for _ in range(2):
        assert outcome(call_and_cancel_waits(synchronous, background, eventually, call)) == "unknown"
    synchronous.restore_link()
    assert [claimed["id"] for claimed in call().json()["jobs"]] == [job["id"]]


def test_writes_wait_for_a_lost_standby_and_readyz_reports_it(
    synchronous: Pair, api: Api, background: Background, eventually: Eventually
) -> None:
    api.enqueue()
    assert "have been running for more than 5 seconds" not in durability(api)
    synchronous.break_link()
    call = background.submit(api.enqueue)
    eventually(lambda: metric_value(api.http, "long_statements") > 0)
    assert "have been running for more than 5 seconds" in durability(api)
    assert not call.done()
    synchronous.restore_link()
    assert call.result(30)["state"] == "ready"
    eventually(lambda: metric_value(api.http, "long_statements") == 0)


def durability(api: Api) -> str:
    detail: str = next(
        check["detail"] for check in api.http.get("/readyz").json()["checks"] if check["name"] == "durability"
    )
    return detail
