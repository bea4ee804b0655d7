"""Heartbeats with holds_all: leases that two heartbeats in a row do not list are returned."""

import pytest

from tests.api_client import Api, Json
from tests.database import TestDatabase
from tests.polls import metric_value


@pytest.fixture
def held(api: Api, db: TestDatabase) -> Json:
    """A lease of worker w, claimed more than two seconds ago."""
    api.enqueue()
    job = api.claim_one(worker_id="w")
    db.age(job["id"], 3)
    return job


def released(api: Api, *jobs: Json, worker_id: str = "w") -> list[str]:
    ids: list[str] = api.heartbeat(worker_id, *jobs, holds_all=True)["released"]
    return ids


def test_lease_missing_from_two_heartbeats_is_returned_at_no_cost(api: Api, held: Json) -> None:
    before = metric_value(api.http, "claims_reconciled_total")
    assert released(api) == []
    assert api.job(held["id"])["state"] == "running"
    assert released(api) == [held["id"]]
    job = api.job(held["id"])
    assert (job["state"], job["attempt"], job["crashes"], job["deliveries"]) == ("ready", 0, 0, 1)
    assert metric_value(api.http, "claims_reconciled_total") == before + 1
    assert api.claim_one()["id"] == held["id"]


def test_listing_a_lease_resets_its_missing_heartbeats(api: Api, held: Json) -> None:
    assert released(api) == []
    assert released(api, held) == []
    assert released(api) == []
    assert released(api) == [held["id"]]


def test_heartbeat_of_a_single_job_resets_its_missing_heartbeats(api: Api, held: Json) -> None:
    assert released(api) == []
    api.heartbeat_one(held)
    assert released(api) == []


def test_only_missing_leases_are_returned(api: Api, db: TestDatabase, held: Json) -> None:
    api.enqueue()
    known = api.claim_one(worker_id="w")
    db.age(known["id"], 3)
    assert [released(api, known), released(api, known)] == [[], [held["id"]]]
    assert api.complete(known)["status"] == "settled"


def test_a_stale_token_does_not_list_the_new_lease(api: Api, db: TestDatabase, held: Json) -> None:
    api.release(held)
    renewed = api.claim_one(worker_id="w")
    db.age(renewed["id"], 3)
    assert [released(api, held), released(api, held)] == [[], [held["id"]]]


def test_new_lease_is_not_missing_because_the_claim_response_may_be_on_its_way(api: Api) -> None:
    job = api.enqueue()
    api.claim_one(worker_id="w")
    assert [released(api) for _ in range(3)] == [[], [], []]
    assert api.job(job["id"])["state"] == "running"


def test_heartbeat_in_the_first_two_seconds_of_a_lease_does_not_count(api: Api, db: TestDatabase) -> None:
    api.enqueue()
    job = api.claim_one(worker_id="w")
    assert released(api) == []
    db.age(job["id"], 3)
    assert released(api) == []
    assert released(api) == [job["id"]]


def test_leases_of_other_workers_and_without_a_worker_are_not_returned(api: Api, db: TestDatabase, held: Json) -> None:
    api.enqueue()
    without_worker = api.claim_one()
    db.age(without_worker["id"], 3)
    assert [released(api, worker_id="another") for _ in range(3)] == [[], [], []]
    assert {api.job(job["id"])["state"] for job in (held, without_worker)} == {"running"}


def test_heartbeat_without_holds_all_returns_nothing(api: Api, held: Json) -> None:
    assert [api.heartbeat("w")["released"] for _ in range(3)] == [[], [], []]
    assert released(api) == []


def test_new_lease_of_the_same_worker_has_no_missing_heartbeats(api: Api, db: TestDatabase, held: Json) -> None:
    assert released(api) == []
    api.release(held)
    renewed = api.claim_one(worker_id="w")
    db.age(renewed["id"], 3)
    assert released(api) == []
    assert released(api, renewed) == []


def test_returned_lease_can_still_be_completed(api: Api, held: Json) -> None:
    released(api)
    assert released(api) == [held["id"]]
    assert api.heartbeat_one(held, status=409)["code"] == "lease_lost"
    assert api.complete(held)["status"] == "settled"


def test_missing_lease_of_a_job_to_be_cancelled_ends_as_cancelled(api: Api, held: Json) -> None:
    api.post(f"/jobs/{held['id']}/cancel", {}, status=202)
    released(api)
    released(api)
    assert api.job(held["id"])["state"] == "cancelled"


def test_late_failure_of_a_returned_lease_counts_the_attempt_that_was_refunded(api: Api, held: Json) -> None:
    released(api)
    assert released(api) == [held["id"]]
    result = api.fail(held, retry_after_seconds=0)
    assert (result["status"], result["state"], result["attempt"]) == ("settled", "ready", 1)
    assert [(record["attempt"], record["outcome"]) for record in api.attempts(held)] == [(1, "fail")]
    assert api.claim_one()["attempt"] == 2


def test_late_failure_of_a_returned_lease_exhausts_the_attempts(api: Api, db: TestDatabase) -> None:
    api.enqueue(max_attempts=1)
    job = api.claim_one(worker_id="w")
    db.age(job["id"], 3)
    released(api)
    assert released(api) == [job["id"]]
    assert api.fail(job)["state"] == "dead"
    dead = api.job(job["id"])
    assert (dead["state_reason"], dead["attempt"]) == ("attempts_exhausted", 1)
