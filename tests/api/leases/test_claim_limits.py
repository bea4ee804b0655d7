"""POST /claim: values that are rejected or clamped, and the size of the response."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from app.broker import Broker
from app.db.lanes import lane_of
from app.leases import store
from app.leases.claim import ClaimCall
from app.leases.rows import LanePolicy, PollSlice
from app.leases.store import ENVELOPE_BYTES
from tests.api.concurrency.test_cost import claim_params
from tests.api_client import Api
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import Loop, TestDatabase
from tests.table import table


@table(
    "field",
    [
        {"max_jobs": 0},
        {"max_jobs": -1},
        {"max_jobs": 1001},
        {"max_jobs": 10**9},
        {"lease_seconds": 0},
        {"lease_seconds": -5},
        {"lease_seconds": 86401},
        {"lease_seconds": 10**9},
        {"wait_seconds": -1},
        {"queues": []},
        {"queues": ["no spaces"]},
        {"job_types": []},
        {"worker_id": "a\nb"},
        {"max_job": 3},
    ],
)
def test_claim_out_of_bounds_is_rejected_with_a_pointer_and_claims_nothing(api: Api, field: dict[str, Any]) -> None:
    job = api.enqueue()
    problem = api.post("/claim", {"queues": [api.queue], **field}, status=422)
    assert problem["code"] == "validation_failed"
    assert problem["errors"][0]["pointer"].startswith(f"/{next(iter(field))}")
    assert api.job(job["id"])["state"] == "ready"


@pytest.mark.parametrize("field", [{"max_jobs": 1000}, {"lease_seconds": 1}, {"lease_seconds": 86400}], ids=str)
def test_claim_accepts_values_at_the_bounds(api: Api, field: dict[str, Any]) -> None:
    api.enqueue()
    assert len(api.claim(**field)["jobs"]) == 1


def test_wait_above_the_maximum_is_clamped_and_not_rejected(api: Api, low_limits: Api) -> None:
    api.enqueue()
    assert len(api.claim(wait_seconds=1e9)["jobs"]) == 1
    assert low_limits.claim(wait_seconds=1e9)["jobs"] == []  # would wait for thirty years


@pytest.fixture(scope="module")
def low_limits_broker(dsn: str) -> Iterator[RunningBroker]:
    settings = TEST_SETTINGS.model_copy(
        update={"max_wait_seconds": 0.05, "max_batch_bytes": 8000, "max_claim_jobs": 5, "max_settlements": 3}
    )
    with threaded_broker(settings, dsn) as broker:
        yield broker


@pytest.fixture
def low_limits(low_limits_broker: RunningBroker, db: TestDatabase, queue: str) -> Api:
    return Api(low_limits_broker.http, queue)


def test_request_limits_come_from_the_settings(low_limits: Api) -> None:
    assert low_limits.post("/claim", {"max_jobs": 6}, status=422)["errors"][0]["pointer"] == "/max_jobs"
    lease = {"job_id": "01890000-0000-7000-8000-000000000000", "lease_token": "x"}
    too_many = [{**lease, "outcome": "release"}] * 4
    assert low_limits.post("/settle", {"items": too_many}, status=413)["limit"] == 3
    assert low_limits.post("/claim", {"settle": too_many}, status=413)["limit"] == 3
    assert low_limits.post("/heartbeat", {"worker_id": "w", "leases": [lease] * 4}, status=413)["limit"] == 3


def test_job_larger_than_the_maximum_response_is_claimed_alone(api: Api, low_limits: Api) -> None:
    large, _ = api.enqueue(payload="x" * 20_000), api.enqueue()
    assert [job["id"] for job in low_limits.claim(max_jobs=5)["jobs"]] == [large["id"]]


def test_claim_response_stays_below_its_maximum_size_whatever_fills_it(api: Api, low_limits: Api) -> None:
    for fields in (
        {"payload": "ä" * 1000},
        {"metadata": {"note": "x" * 2000}},
        {"tags": ["x" * 100] * 20},
        {"payload": "x" * 2000},
    ):
        api.enqueue(**fields)
    response = low_limits.http.post("/claim", json={"queues": [api.queue], "max_jobs": 5})
    assert 1 <= len(response.json()["jobs"]) < 4
    assert len(response.content) <= 8000


def test_second_queue_adds_nothing_to_a_full_response(api: Api, low_limits: Api) -> None:
    other = f"{api.queue}-other"
    for queue in (api.queue, api.queue, other, other):
        api.enqueue(queue=queue, payload="x" * 3000)
    response = low_limits.http.post("/claim", json={"queues": [api.queue, other], "max_jobs": 5})
    assert [job["queue"] for job in response.json()["jobs"]] == [api.queue]
    assert len(response.content) <= 8000


def test_claim_response_of_many_large_jobs_has_at_most_eight_mebibytes(api: Api) -> None:
    for _ in range(4):
        jobs = [{"queue": api.queue, "job_type": "t", "payload": "x" * (256 * 1024 - 2)} for _ in range(10)]
        api.post("/jobs/batch", {"jobs": jobs}, status=201)
    response = api.http.post("/claim", json={"queues": [api.queue], "max_jobs": 1000})
    assert 25 < len(response.json()["jobs"]) < 40
    assert len(response.content) <= 8 * 1024 * 1024


def test_shared_claim_leaves_jobs_that_do_not_fit_into_one_response_ready(
    broker_services: Broker, api: Api, loop: Loop
) -> None:
    """Three claims of three jobs each, in responses that hold two.

    The first job of the second claim is too large on its own.
    """
    payloads = ["small", "small", "small", "x" * 4000, "small", "small", "small", "small", "small"]
    ids = [result["job_id"] for result in api.batch(*({"payload": payload} for payload in payloads))["results"]]
    params = claim_params()._replace(
        poll_slices=[PollSlice(3, f"worker-{n}", None) for n in range(3)], max_bytes=2 * ENVELOPE_BYTES + 100
    )
    rows = loop.run(
        store.claim(
            broker_services.infra.db, lane_of(UUID(ids[0])), 9, params, LanePolicy(), broker_services.infra.now()
        )
    )
    assert [(str(row.id), row.slice_number) for row in rows] == [
        (ids[0], 1),
        (ids[1], 1),
        (ids[3], 2),
        (ids[6], 3),
        (ids[7], 3),
    ]
    assert api.counts() == {"ready": 4, "running": 5}


def test_poller_behind_a_full_response_gets_the_jobs_that_did_not_fit(
    broker_services: Broker, api: Api, loop: Loop
) -> None:
    ids = api.enqueue_many(4)
    lane = lane_of(UUID(ids[0]))
    loop.run(broker_services.queues.refresh())
    calls = [ClaimCall(100, claim_params()._replace(max_bytes=2 * ENVELOPE_BYTES + 100)) for _ in range(2)]
    got = loop.run(broker_services.claims._batcher.run_batch(lane, calls))
    assert [[str(row.id) for row in rows] for rows in got] == [ids[:2], ids[2:]]


def test_poller_gets_the_large_job_that_did_not_fit_into_a_response_that_is_not_half_full(
    broker_services: Broker, api: Api, loop: Loop
) -> None:
    """With other limits than the defaults, one job can be larger than half of a response."""
    ids = [result["job_id"] for result in api.batch({"payload": "small"}, {"payload": "x" * 7000})["results"]]
    loop.run(broker_services.queues.refresh())
    calls = [ClaimCall(100, claim_params()._replace(max_bytes=8000)) for _ in range(2)]
    got = loop.run(broker_services.claims._batcher.run_batch(lane_of(UUID(ids[0])), calls))
    assert [[str(row.id) for row in rows] for rows in got] == [[ids[0]], [ids[1]]]
