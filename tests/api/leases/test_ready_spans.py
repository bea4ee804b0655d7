"""Ready spans: claims find every job in exact order, however spans overlap and whoever holds them."""

import json
from uuid import UUID

import pytest

from app.broker import Broker
from app.db.lanes import lane_of
from app.leases import store
from app.leases.rows import HeartbeatParams, LanePolicy
from tests.api.concurrency.test_cost import claim_params
from tests.api_client import Api
from tests.conftest import wait_until
from tests.database import Loop, TestDatabase

HEAP_ONLY_UPDATES = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'jobs'"
SPANS_OF_LANE = "SELECT priority, first_id, last_id FROM ready_spans WHERE lane = $1 ORDER BY priority DESC, first_id"


def spans(db: TestDatabase, job_id: str) -> list[tuple[str, str]]:
    return [(str(row["first_id"]), str(row["last_id"])) for row in db.rows(SPANS_OF_LANE, lane_of(UUID(job_id)))]


def claimed(api: Api, count: int, **fields: object) -> list[str]:
    return [job["id"] for job in api.claim(max_jobs=count, **fields)["jobs"]]


def test_batch_has_one_span_for_each_priority(api: Api, db: TestDatabase) -> None:
    results = api.batch({}, {"priority": 5}, {}, {"delay_seconds": 60}, {"priority": 5}, {"priority": -1})["results"]
    ids = [result["job_id"] for result in results]
    assert spans(db, ids[0]) == [(ids[1], ids[4]), (ids[0], ids[2]), (ids[5], ids[5])]


def test_claim_shortens_a_span_and_deletes_an_empty_one(api: Api, db: TestDatabase) -> None:
    ids = api.enqueue_many(4)
    assert claimed(api, 3) == ids[:3]
    assert spans(db, ids[0]) == [(ids[3], ids[3])]
    assert claimed(api, 3) == ids[3:]
    assert spans(db, ids[0]) == []


@pytest.mark.parametrize("fields", [{}, {"job_types": ["test"]}], ids=["all types", "one type"])
def test_job_that_becomes_due_in_the_middle_of_a_span_keeps_its_place(
    api: Api, db: TestDatabase, fields: dict[str, object]
) -> None:
    results = api.batch(*[{}] * 3, {"delay_seconds": 60}, *[{}] * 3)["results"]
    ids = [result["job_id"] for result in results]
    db.age(ids[3], 60)
    wait_until(lambda: api.job(ids[3])["state"] == "ready")
    assert claimed(api, 2, **fields) == ids[:2]
    assert claimed(api, 100, **fields) == ids[2:]


def test_claim_of_jobs_that_two_spans_cover_gets_as_many_as_requested(api: Api, db: TestDatabase) -> None:
    ids = api.enqueue_many(6)
    for job_id in ids[1:4]:
        api.change({"id": job_id}, priority=1)
        api.change({"id": job_id}, priority=0)
    assert len(spans(db, ids[0])) > 3
    assert claimed(api, 4) == ids[:4]
    assert claimed(api, 4) == ids[4:]
    assert spans(db, ids[0]) == []


def test_spans_of_cancelled_jobs_do_not_hide_others(api: Api, db: TestDatabase) -> None:
    cancelled = [api.enqueue() for _ in range(5)]
    kept = api.enqueue()
    for job in cancelled:
        api.cancel(job)
    assert claimed(api, 1) == [kept["id"]]
    assert spans(db, kept["id"]) == []


@pytest.mark.parametrize("fields", [{}, {"job_types": ["test"]}], ids=["all types", "one type"])
def test_claim_that_finds_no_job_deletes_empty_spans_or_leaves_them(
    api: Api, db: TestDatabase, fields: dict[str, object]
) -> None:
    """Claims of some job types change only what they have to lock anyway."""
    job = api.enqueue()
    api.cancel(job)
    assert claimed(api, 1, **fields) == []
    assert len(spans(db, job["id"])) <= len(fields)


def test_claim_of_other_types_leaves_the_span(api: Api, db: TestDatabase) -> None:
    results = api.batch({"job_type": "a"}, {"job_type": "b"}, {"job_type": "a"})["results"]
    ids = [result["job_id"] for result in results]
    assert claimed(api, 5, job_types=["b"]) == [ids[1]]
    assert spans(db, ids[0]) == [(ids[0], ids[2])]
    assert claimed(api, 5, job_types=["a"]) == [ids[0], ids[2]]
    assert spans(db, ids[0]) == []


def test_jobs_of_a_span_that_a_rival_holds_are_claimed_in_order(api: Api, db: TestDatabase) -> None:
    ids = api.enqueue_many(4)
    younger = api.enqueue_many(2)
    with db.uncommitted("SELECT FROM ready_spans WHERE first_id = $1 FOR UPDATE", UUID(ids[0])):
        assert claimed(api, 2) == ids[:2]
        assert claimed(api, 3) == [*ids[2:], younger[0]]
    assert claimed(api, 3) == younger[1:]
    assert spans(db, ids[0]) == []


def test_job_that_another_transaction_has_locked_does_not_hold_up_its_span(api: Api, db: TestDatabase) -> None:
    ids = api.enqueue_many(4)
    with db.uncommitted("SELECT FROM jobs WHERE id = $1 FOR UPDATE", UUID(ids[1])):
        assert claimed(api, 2) == [ids[0], ids[2]]
    assert claimed(api, 5) == [ids[1], ids[3]]


def test_job_that_did_not_fit_stays_in_its_span(
    broker_services: Broker, api: Api, db: TestDatabase, loop: Loop
) -> None:
    results = api.batch({"payload": "x" * 3000}, {"payload": "x" * 3000}, {"payload": ""})["results"]
    ids = [result["job_id"] for result in results]
    params = claim_params()._replace(max_bytes=2 * store.ENVELOPE_BYTES + 3010)
    rows = loop.run(
        store.claim(
            broker_services.infra.db, lane_of(UUID(ids[0])), 3, params, LanePolicy(), broker_services.infra.now()
        )
    )
    assert [str(row.id) for row in rows] == ids[:1]
    assert spans(db, ids[0]) == [(ids[1], ids[2])]


def test_plain_claims_and_heartbeats_insert_no_index_entries(
    broker_services: Broker, api: Api, loop: Loop, db: TestDatabase
) -> None:
    lane = lane_of(UUID(api.enqueue_many(20)[0]))

    async def run() -> tuple[int, int]:
        async with broker_services.infra.db.transaction() as transaction:
            now = broker_services.infra.now()
            rows = await store.claim(transaction, lane, 20, claim_params(), LanePolicy(), now)
            heartbeats = [
                HeartbeatParams(row.id, row.lease_token, None, json.dumps({"percent": 50}), None) for row in rows
            ]
            assert len(await store.heartbeat(transaction, lane, heartbeats, now, 60)) == 20
            counts = await transaction.row(HEAP_ONLY_UPDATES)
            assert counts is not None
            return counts["n_tup_upd"], counts["n_tup_hot_upd"]

    assert loop.run(run()) == (40, 40)
