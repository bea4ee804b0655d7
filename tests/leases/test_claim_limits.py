"""POST /claim: what it refuses, what it clamps, and how much it answers."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from app.broker import Broker
from app.db.lanes import lane_of
from app.leases import store
from app.leases.claim import ClaimCall
from app.leases.store import ENVELOPE_BYTES, LanePolicy, PollSlice
from tests.api import Api
from tests.broker import threaded_broker
from tests.conftest import QUICK
from tests.database import Loop, TestDatabase
from tests.limits.test_cost import ASKED


@pytest.mark.parametrize(
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
    ids=str,
)
def test_a_claim_out_of_bounds_is_refused_with_a_pointer_and_takes_nothing(api: Api, field: dict[str, Any]) -> None:
    job = api.enqueue()
    problem = api.post("/claim", {"queues": [api.queue], **field}, status=422)
    assert problem["code"] == "validation_failed"
    assert problem["errors"][0]["pointer"].startswith(f"/{next(iter(field))}")
    assert api.job(job["id"])["state"] == "ready"


@pytest.mark.parametrize("field", [{"max_jobs": 1000}, {"lease_seconds": 1}, {"lease_seconds": 86400}], ids=str)
def test_the_bounds_themselves_are_taken(api: Api, field: dict[str, Any]) -> None:
    api.enqueue()
    assert len(api.claim(**field)["jobs"]) == 1


def test_a_wait_above_the_ceiling_is_clamped_and_not_refused(api: Api, brief: Api) -> None:
    api.enqueue()
    assert len(api.claim(wait_seconds=1e9)["jobs"]) == 1
    assert brief.claim(wait_seconds=1e9)["jobs"] == []  # would wait for thirty years


@pytest.fixture
def brief(db: TestDatabase, queue: str) -> Iterator[Api]:
    """A broker with low ceilings."""
    settings = QUICK.model_copy(
        update={"max_wait_seconds": 0.05, "max_batch_bytes": 8000, "max_claim_jobs": 5, "max_settlements": 3}
    )
    with threaded_broker(settings, db.dsn) as broker:
        yield Api(broker.http, queue)


def test_limits_are_settings(brief: Api) -> None:
    assert brief.post("/claim", {"max_jobs": 6}, status=422)["errors"][0]["pointer"] == "/max_jobs"
    lease = {"job_id": "01890000-0000-7000-8000-000000000000", "lease_token": "x"}
    too_many = [{**lease, "outcome": "release"}] * 4
    assert brief.post("/settle", {"items": too_many}, status=413)["limit"] == 3
    assert brief.post("/claim", {"settle": too_many}, status=413)["limit"] == 3
    assert brief.post("/heartbeat", {"worker_id": "w", "leases": [lease] * 4}, status=413)["limit"] == 3


def test_a_job_larger_than_the_answer_may_be_is_handed_out_alone(api: Api, brief: Api) -> None:
    large, _ = api.enqueue(payload="x" * 20_000), api.enqueue()
    assert [job["id"] for job in brief.claim(max_jobs=5)["jobs"]] == [large["id"]]


def test_the_answer_stops_at_its_cap_whatever_fills_it(api: Api, brief: Api) -> None:
    for fields in (
        {"payload": "ä" * 1000},
        {"metadata": {"note": "x" * 2000}},
        {"tags": ["x" * 100] * 20},
        {"payload": "x" * 2000},
    ):
        api.enqueue(**fields)
    response = brief.http.post("/claim", json={"queues": [api.queue], "max_jobs": 5})
    assert 1 <= len(response.json()["jobs"]) < 4
    assert len(response.content) <= 8000


def test_a_second_queue_does_not_add_to_a_full_answer(api: Api, brief: Api) -> None:
    other = f"{api.queue}-other"
    for queue in (api.queue, api.queue, other, other):
        api.enqueue(queue=queue, payload="x" * 3000)
    response = brief.http.post("/claim", json={"queues": [api.queue, other], "max_jobs": 5})
    assert [job["queue"] for job in response.json()["jobs"]] == [api.queue]
    assert len(response.content) <= 8000


def test_a_claim_of_many_large_jobs_answers_at_most_eight_mebibytes(api: Api) -> None:
    for _ in range(4):
        jobs = [{"queue": api.queue, "job_type": "t", "payload": "x" * (256 * 1024 - 2)} for _ in range(10)]
        api.post("/jobs/batch", {"jobs": jobs}, status=201)
    response = api.http.post("/claim", json={"queues": [api.queue], "max_jobs": 1000})
    assert 25 < len(response.json()["jobs"]) < 40
    assert len(response.content) <= 8 * 1024 * 1024


def test_what_does_not_fit_into_the_answer_of_one_poll_is_not_taken_from_another(
    broker_services: Broker, api: Api, loop: Loop
) -> None:
    """Three claims of three jobs each, in answers that hold two of them; for the second the first alone is too large."""
    payloads = ["small", "small", "small", "x" * 4000, "small", "small", "small", "small", "small"]
    ids = [result["job_id"] for result in api.batch(*({"payload": payload} for payload in payloads))["results"]]
    params = ASKED._replace(
        shares=[PollSlice(3, f"worker-{n}", None) for n in range(3)], max_bytes=2 * ENVELOPE_BYTES + 100
    )
    rows = loop.run(
        store.claim(
            broker_services.infra.db, lane_of(UUID(ids[0])), 9, params, LanePolicy(), broker_services.infra.now()
        )
    )
    assert [(str(row.id), row.share) for row in rows] == [
        (ids[0], 1),
        (ids[1], 1),
        (ids[3], 2),
        (ids[6], 3),
        (ids[7], 3),
    ]
    assert api.counts() == {"ready": 4, "running": 5}


def test_who_shares_a_claim_with_one_whose_answer_is_full_gets_what_did_not_fit(
    broker_services: Broker, api: Api, loop: Loop
) -> None:
    ids = api.enqueue_many(4)
    lane = lane_of(UUID(ids[0]))
    loop.run(broker_services.queues.refresh())
    claim = ClaimCall(100, ASKED._replace(max_bytes=2 * ENVELOPE_BYTES + 100))
    got = loop.run(broker_services.claims._take_together(lane, [claim, ClaimCall(100, claim.params)]))
    assert [[str(row.id) for row in rows] for rows in got] == [ids[:2], ids[2:]]
