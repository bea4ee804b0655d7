"""A heartbeat with holds_all: leases that the worker does not know of go back, after two heartbeats without them."""

import pytest

from tests.api import Api, Json
from tests.database import TestDatabase
from tests.polls import counted


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


def test_a_lease_missing_from_two_heartbeats_goes_back_at_no_cost(api: Api, held: Json) -> None:
    before = counted(api.http, "claims_reconciled_total")
    assert released(api) == []
    assert api.job(held["id"])["state"] == "running"
    assert released(api) == [held["id"]]
    job = api.job(held["id"])
    assert (job["state"], job["attempt"], job["crashes"], job["deliveries"]) == ("ready", 0, 0, 1)
    assert counted(api.http, "claims_reconciled_total") == before + 1
    assert api.claim_one()["id"] == held["id"]


def test_a_lease_that_is_listed_in_between_starts_anew(api: Api, held: Json) -> None:
    assert released(api) == []
    assert released(api, held) == []
    assert released(api) == []
    assert released(api) == [held["id"]]


def test_a_heartbeat_of_the_job_itself_starts_anew_too(api: Api, held: Json) -> None:
    assert released(api) == []
    api.heartbeat_one(held)
    assert released(api) == []


def test_only_what_is_missing_goes_back(api: Api, db: TestDatabase, held: Json) -> None:
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


def test_a_fresh_lease_is_not_missed_its_answer_may_be_on_the_way(api: Api) -> None:
    job = api.enqueue()
    api.claim_one(worker_id="w")
    assert [released(api) for _ in range(3)] == [[], [], []]
    assert api.job(job["id"])["state"] == "running"


def test_a_heartbeat_in_the_first_two_seconds_does_not_count_as_the_first(api: Api, db: TestDatabase) -> None:
    api.enqueue()
    job = api.claim_one(worker_id="w")
    assert released(api) == []
    db.age(job["id"], 3)
    assert released(api) == []
    assert released(api) == [job["id"]]


def test_leases_of_other_workers_and_of_nobody_are_left_alone(api: Api, db: TestDatabase, held: Json) -> None:
    api.enqueue()
    nobodys = api.claim_one()
    db.age(nobodys["id"], 3)
    assert [released(api, worker_id="another") for _ in range(3)] == [[], [], []]
    assert {api.job(job["id"])["state"] for job in (held, nobodys)} == {"running"}


def test_without_holds_all_nothing_is_missed(api: Api, held: Json) -> None:
    assert [api.heartbeat("w")["released"] for _ in range(3)] == [[], [], []]
    assert released(api) == []


def test_a_new_holder_of_the_same_worker_starts_with_a_clean_slate(api: Api, db: TestDatabase, held: Json) -> None:
    assert released(api) == []
    api.release(held)
    renewed = api.claim_one(worker_id="w")
    db.age(renewed["id"], 3)
    assert released(api) == []
    assert released(api, renewed) == []


def test_work_that_was_taken_back_by_mistake_may_still_be_completed(api: Api, held: Json) -> None:
    released(api)
    assert released(api) == [held["id"]]
    assert api.heartbeat_one(held, status=409)["code"] == "lease_lost"
    assert api.complete(held)["status"] == "settled"


def test_a_cancelled_job_that_goes_missing_ends_as_cancelled(api: Api, held: Json) -> None:
    api.post(f"/jobs/{held['id']}/cancel", {}, status=202)
    released(api)
    released(api)
    assert api.job(held["id"])["state"] == "cancelled"
