"""A commit waits for a standby that is away: it is acknowledged when the standby has it, and not before, whoever loses patience."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.api import Api, Json
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import Loop
from tests.failover.cluster import SYNCHRONOUS, Pair, start_pair
from tests.failover.server import Server
from tests.polls import Background, metric_value

Eventually = Callable[[Callable[[], Any]], Any]
Call = Callable[[], httpx.Response]

JOBS = "SELECT count(*) FROM jobs"


@pytest.fixture(scope="module")
def synchronous(template: Server, loop: Loop) -> Iterator[Pair]:
    """One for all: each test mends the link that it has cut."""
    with start_pair(template, loop, SYNCHRONOUS) as made:
        yield made


@pytest.fixture(scope="module")
def waiting_broker(synchronous: Pair) -> Iterator[RunningBroker]:
    with threaded_broker(TEST_SETTINGS, synchronous.dsn) as broker:
        yield broker


@pytest.fixture
def api(waiting_broker: RunningBroker, queue: str) -> Api:
    return Api(waiting_broker.http, queue)


def with_cancelled_waits(servers: Pair, background: Background, eventually: Eventually, call: Call) -> httpx.Response:
    """As an operator does who wants to see the statement gone."""
    answer = background.submit(call)

    def cancelled() -> bool:
        for pid in servers.waiting():
            servers.on_primary.value("SELECT pg_cancel_backend($1)", pid)
        return answer.done()

    eventually(cancelled)
    return answer.result()


def outcome(answer: httpx.Response) -> Any:
    problem: Json = answer.json()
    assert (answer.status_code, problem["code"]) == (503, "database_unavailable"), problem
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

    assert outcome(with_cancelled_waits(synchronous, background, eventually, call)) == "unknown"
    assert synchronous.on_primary.value(JOBS) == before + 1
    # Here it is, but a failover would lose it: whoever asks again is not told that all is well.
    assert outcome(with_cancelled_waits(synchronous, background, eventually, call)) == "unknown"
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
    held = api.claim_one()
    synchronous.break_link()

    def call() -> httpx.Response:
        return api.http.post(f"/jobs/{held['id']}/{verb}", json={"lease_token": held["lease_token"]})

    for _ in range(2):
        assert outcome(with_cancelled_waits(synchronous, background, eventually, call)) == "unknown"
    synchronous.restore_link()
    assert call().json()["status"] == "already_settled"
    synchronous.wait_for_replay()
    assert (
        synchronous.on_standby.value("SELECT count(*) FROM jobs WHERE id = $1 AND state = 'running'", held["id"]) == 0
    )


def test_claim_with_a_cancelled_wait_is_unknown_until_replicated(
    synchronous: Pair, api: Api, background: Background, eventually: Eventually
) -> None:
    job = api.enqueue()
    synchronous.break_link()

    def call() -> httpx.Response:
        return api.http.post("/claim", json={"queues": [api.queue]}, headers={"Idempotency-Key": "k"})

    for _ in range(2):
        assert outcome(with_cancelled_waits(synchronous, background, eventually, call)) == "unknown"
    synchronous.restore_link()
    assert [held["id"] for held in call().json()["jobs"]] == [job["id"]]


def test_writes_wait_for_a_lost_standby_and_readyz_reports_it(
    synchronous: Pair, api: Api, background: Background, eventually: Eventually
) -> None:
    api.enqueue()
    assert "running for long" not in durability(api)
    synchronous.break_link()
    call = background.submit(api.enqueue)
    eventually(lambda: metric_value(api.http, "long_statements") > 0)
    assert "running for long" in durability(api)
    assert not call.done()
    synchronous.restore_link()
    assert call.result(30)["state"] == "ready"
    eventually(lambda: metric_value(api.http, "long_statements") == 0)


def durability(api: Api) -> str:
    detail: str = next(
        check["detail"] for check in api.http.get("/readyz").json()["checks"] if check["name"] == "durability"
    )
    return detail
