"""Claims that fail after their jobs were leased.

What was rolled back is not counted, and no job stays leased to a worker that got an error.
"""

from collections.abc import Callable
from typing import Any

import pytest

from app.broker import Broker
from app.dependencies import store as dependencies
from app.errors import DatabaseUnavailable
from app.events import JobsMoved
from app.http.authorization import FULL_ACCESS
from app.leases.schemas import ClaimJobs
from app.locks import store as locks
from app.server.exchange import Client
from tests.api.leases.test_settle import item
from tests.api_client import Api, Json
from tests.broker import RunningBroker
from tests.database import Loop
from tests.polls import metric_value

Eventually = Callable[[Callable[[], Any]], Any]


async def fail(*_: object) -> None:
    raise DatabaseUnavailable("the connection was lost", "unknown")


def test_claim_that_was_rolled_back_is_neither_counted_nor_published(
    broker_services: Broker, api: Api, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = api.enqueue()
    published: list[JobsMoved] = []
    broker_services.events.subscribe_moved(["running"], published.append)

    async def claim() -> list[str]:
        request = ClaimJobs(queues=[api.queue])
        result = await broker_services.long_poll.poll(request, "k", Client(), FULL_ACCESS)
        return [str(row.id) for row in result.rows]

    def counts() -> tuple[int, int, int]:
        claimed = int(broker_services.infra.metrics.claimed._value.get())
        return len(published), claimed, sum(broker_services.claims._durations.take().values())

    with monkeypatch.context() as broken:
        broken.setattr(locks, "write_key_response", fail)
        with pytest.raises(DatabaseUnavailable):
            loop.run(claim())
    assert (api.job(job["id"])["state"], counts()) == ("ready", (0, 0, 0))
    assert (loop.run(claim()), counts()) == ([job["id"]], (1, 1, 1))


@pytest.fixture
def child(api: Api) -> Json:
    """A ready job whose parent has completed."""
    parent = api.enqueue()
    child = api.enqueue(depends_on=[parent["id"]])
    api.complete(api.claim_one(), result="of the parent")
    return child


def claim_without_parent_results(api: Api, patch: pytest.MonkeyPatch, *, key: str | None = None, **fields: Any) -> Json:
    """Claims while the results of parents cannot be read. Returns the problem."""
    with patch.context() as broken:
        broken.setattr(dependencies, "parent_sizes", fail)
        body = {"queues": [api.queue], "wait_seconds": 20, "parent_results": True, **fields}
        problem: Json = api.post("/claim", body, status=503, key=key)
        return problem


def test_claim_is_returned_if_the_results_of_parents_cannot_be_read(
    api: Api, child: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = metric_value(api.http, "claims_undone_total")
    assert claim_without_parent_results(api, monkeypatch)["outcome"] == "not_done"
    job = api.job(child["id"])
    assert (job["state"], job["attempt"], job["crashes"], job["deliveries"]) == ("ready", 0, 0, 1)
    assert metric_value(api.http, "claims_undone_total") == before + 1
    claimed = api.claim_one(parent_results=True)
    assert (claimed["attempt"], claimed["parent_results"][0]["result"]) == (1, "of the parent")


def test_returned_claim_that_has_settled_jobs_reports_an_unknown_outcome(
    api: Api, child: Json, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = api.enqueue(priority=1)
    held = api.claim_one()
    assert held["id"] == other["id"]
    eventually(lambda: api.job(child["id"])["state"] == "ready")
    problem = claim_without_parent_results(api, monkeypatch, settle=[item(held, "complete")])
    assert problem["outcome"] == "unknown"
    assert [api.job(job["id"])["state"] for job in (held, child)] == ["completed", "ready"]


def test_claim_with_a_key_is_not_returned_but_repeated(api: Api, child: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    assert claim_without_parent_results(api, monkeypatch, key="k")["outcome"] == "unknown"
    assert api.job(child["id"])["state"] == "running"
    again = api.claim_one(key="k", parent_results=True)
    assert (again["id"], again["attempt"], again["deliveries"]) == (child["id"], 1, 1)
    assert again["parent_results"][0]["result"] == "of the parent"


def test_claim_that_cannot_be_returned_now_is_returned_later(
    api: Api, broker: RunningBroker, child: Json, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert broker.broker_services is not None
    with monkeypatch.context() as broken:
        broken.setattr(broker.broker_services.long_poll, "_requeue_undelivered", fail)
        assert claim_without_parent_results(api, monkeypatch)["outcome"] == "unknown"
    job = eventually(lambda: (job := api.job(child["id"]))["state"] == "ready" and job)
    assert (job["attempt"], job["crashes"]) == (0, 0)
