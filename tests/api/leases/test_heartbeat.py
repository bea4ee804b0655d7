"""Heartbeats extend leases, report lost and cancelled ones, and store progress and checkpoint."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from tests.api_client import Api, Json
from tests.database import TestDatabase
from tests.table import table

Expire = Callable[[Json], None]


@pytest.fixture
def held(api: Api) -> Json:
    api.enqueue()
    return api.claim_one(worker_id="w")


def lease_end(db: TestDatabase, job: Json) -> datetime:
    instant: datetime = db.value("SELECT lease_expires_at FROM jobs WHERE id = $1", job["id"])
    return instant


def test_a_heartbeat_extends_the_lease(api: Api, db: TestDatabase, held: Json) -> None:
    db.age(held["id"], 30)
    before = lease_end(db, held)
    (lease,) = api.heartbeat("w", held)["leases"]
    assert (lease["job_id"], lease["status"], lease["action"]) == (held["id"], "extended", "continue")
    assert datetime.fromisoformat(lease["lease_expires_at"]) == lease_end(db, held) > before
    db.age(held["id"], 30)
    assert datetime.fromisoformat(api.heartbeat_one(held)["lease_expires_at"]) == lease_end(db, held) > before


def test_heartbeat_can_set_the_length_of_the_lease(api: Api, db: TestDatabase, held: Json) -> None:
    now = db.value("SELECT now()")
    api.heartbeat_one(held, lease_seconds=7200)
    assert lease_end(db, held) > now + timedelta(seconds=7000)
    api.heartbeat_one(held, lease_seconds=10)
    assert lease_end(db, held) < now + timedelta(seconds=7000)


def test_heartbeat_without_a_length_does_not_shorten_a_long_lease(api: Api, db: TestDatabase) -> None:
    api.enqueue()
    held = api.claim_one(lease_seconds=7200)
    before = lease_end(db, held)
    assert api.heartbeat("w", held)["leases"][0]["status"] == "extended"
    assert lease_end(db, held) >= before


@table("seconds", [0, -1, 86401, 10**9])
def test_lease_length_out_of_bounds_is_rejected(api: Api, held: Json, seconds: int) -> None:
    token = {"lease_token": held["lease_token"], "lease_seconds": seconds}
    assert api.post(f"/jobs/{held['id']}/heartbeat", token, status=422)["errors"][0]["pointer"] == "/lease_seconds"
    bulk = {"worker_id": "w", "leases": [{"job_id": held["id"], **token}]}
    assert api.post("/heartbeat", bulk, status=422)["errors"][0]["pointer"] == "/leases/0/lease_seconds"


def test_the_next_heartbeat_is_due_before_the_shortest_lease_ends(api: Api) -> None:
    api.enqueue(), api.enqueue(lease_seconds=6)
    long, short = api.claim(max_jobs=2)["jobs"]
    assert api.heartbeat("w", long)["next_heartbeat_ms"] > 6000
    assert 0 < api.heartbeat("w", long, short)["next_heartbeat_ms"] <= 3000
    assert api.heartbeat("w")["next_heartbeat_ms"] == 20_000


def test_lease_statuses_keep_the_order_and_one_lost_lease_fails_no_other(api: Api) -> None:
    for _ in range(4):
        api.enqueue()
    a, b, c, d = api.claim(max_jobs=4)["jobs"]
    api.complete(b)
    unknown = {"id": str(uuid4()), "lease_token": "?"}
    heartbeats = [d, b, {**a, "lease_token": c["lease_token"]}, unknown, a, c, {**c, "lease_token": ""}]
    response = api.heartbeat("w", *heartbeats)
    assert [lease["job_id"] for lease in response["leases"]] == [heartbeat["id"] for heartbeat in heartbeats]
    assert [lease["status"] for lease in response["leases"]] == [
        "extended",
        "lost",
        "lost",
        "lost",
        "extended",
        "extended",
        "lost",
    ]
    assert [lease["action"] for lease in response["leases"]][:3] == ["continue", "abandon", "abandon"]
    assert "lease_expires_at" not in response["leases"][1]


@pytest.mark.parametrize("token", ["", "garbage", "5b7b9a88-a14a-4e74-8b43-018ef2aec98f", "x" * 5000, "' OR true --"])
def test_heartbeat_with_a_wrong_token_is_lost_and_changes_nothing(
    api: Api, db: TestDatabase, held: Json, token: str
) -> None:
    before = lease_end(db, held)
    wrong = {**held, "lease_token": token}
    problem = api.heartbeat_one(wrong, status=409, progress={"percent": 1}, checkpoint=1)
    assert (problem["code"], problem["job_id"], problem["state"], problem["attempt"]) == (
        "lease_lost",
        held["id"],
        "running",
        1,
    )
    assert api.heartbeat("w", wrong)["leases"][0]["status"] == "lost"
    assert lease_end(db, held) == before
    assert not {"progress", "checkpoint"} & api.job(held["id"]).keys()


def test_heartbeat_with_the_token_of_an_earlier_delivery_is_lost(api: Api, held: Json) -> None:
    api.release(held)
    api.claim_one()
    assert api.heartbeat_one(held, status=409)["code"] == "lease_lost"


def test_expired_lease_cannot_be_extended_even_if_the_job_was_not_claimed_again(
    api: Api, held: Json, expire: Expire
) -> None:
    expire(held)
    assert api.heartbeat_one(held, status=409)["state"] == "ready"
    assert api.heartbeat("w", held)["leases"][0]["status"] == "lost"
    assert api.job(held["id"])["state"] == "ready"


@pytest.mark.parametrize("verb", ["complete", "fail", "snooze", "release"])
def test_a_settled_lease_cannot_be_extended(api: Api, held: Json, verb: str) -> None:
    item = {
        "job_id": held["id"],
        "lease_token": held["lease_token"],
        "outcome": verb,
        "error": {"message": "m"},
        "delay_seconds": 5,
    }
    api.settle(item)
    assert api.heartbeat_one(held, status=409)["code"] == "lease_lost"


def test_heartbeat_for_an_unknown_job_is_not_found(api: Api) -> None:
    assert api.heartbeat_one({"id": str(uuid4()), "lease_token": "x"}, status=404)["code"] == "not_found"


def test_heartbeat_of_a_job_to_be_cancelled_returns_cancel_and_extends_the_lease(api: Api, held: Json) -> None:
    api.post(f"/jobs/{held['id']}/cancel", {}, status=202)
    (lease,) = api.heartbeat("w", held)["leases"]
    assert (lease["status"], lease["action"]) == ("extended", "cancel")
    assert api.heartbeat_one(held)["action"] == "cancel"


ENDS: dict[str, Callable[[Api, Json], object]] = {
    "completed": Api.complete,
    "dead": lambda api, job: api.fail(job, retryable=False),
    "cancelled": lambda api, job: (api.cancel(job, status=202), api.release(job)),
    "scheduled": lambda api, job: api.snooze(job, 3600),
}


def test_progress_is_100_percent_after_completion_and_the_last_report_otherwise(api: Api) -> None:
    found = {}
    for end in ENDS.values():
        for progress in ({"percent": 40, "stage": "two"}, {"stage": "two"}):
            api.enqueue()
            held = api.claim_one()
            api.heartbeat_one(held, progress=progress)
            end(api, held)
            job = api.job(held["id"])
            (listed,) = [other for other in api.get("/jobs")["items"] if other["id"] == job["id"]]
            assert listed["progress"] == job["progress"]
            found[job["state"], "percent" in progress] = job["progress"]
    last = {True: {"percent": 40, "stage": "two"}, False: {"stage": "two"}}
    expected = {(state, percent): last[percent] for state in ENDS for percent in (True, False)}
    assert found == expected | {("completed", True): {"percent": 100, "stage": "two"}}


def test_progress_and_checkpoint_are_kept_until_the_next_ones(api: Api, held: Json) -> None:
    checkpoint = {"n": 12345678901234567890, "x": [1.50, None, {"ä": "☃"}]}
    api.heartbeat_one(held, progress={"percent": 10, "stage": "one"}, checkpoint=checkpoint)
    api.heartbeat_one(held)
    job = api.job(held["id"])
    assert (job["progress"], job["checkpoint"]) == ({"percent": 10, "stage": "one"}, checkpoint)
    heartbeat = {
        "job_id": held["id"],
        "lease_token": held["lease_token"],
        "progress": {"percent": 20},
        "checkpoint": None,
    }
    api.post("/heartbeat", {"worker_id": "w", "leases": [heartbeat]})
    job = api.job(held["id"])
    assert (job["progress"], job["checkpoint"]) == ({"percent": 20}, None)


@table(
    ("field", "status", "pointer"),
    [
        ({"checkpoint": "x" * 256 * 1024}, 413, "/leases/0/checkpoint"),
        ({"progress": {"percent": 101}}, 422, "/leases/0/progress/percent"),
        ({"progress": {"percentage": 1}}, 422, "/leases/0/progress/percentage"),
        ({"checkpont": 1}, 422, "/leases/0/checkpont"),
    ],
)
def test_invalid_heartbeat_is_rejected_with_a_pointer(
    api: Api, held: Json, field: dict[str, Any], status: int, pointer: str
) -> None:
    heartbeat = {"job_id": held["id"], "lease_token": held["lease_token"], **field}
    problem = api.post("/heartbeat", {"worker_id": "w", "leases": [heartbeat]}, status=status)
    assert problem["errors"][0]["pointer"] == pointer


def test_heartbeat_with_more_than_1000_leases_is_rejected(api: Api) -> None:
    lease = {"job_id": str(uuid4()), "lease_token": "x"}
    problem = api.post("/heartbeat", {"worker_id": "w", "leases": [lease] * 1001}, status=413)
    assert (problem["code"], problem["limit"]) == ("batch_too_large", 1000)
    assert len(api.post("/heartbeat", {"worker_id": "w", "leases": [lease] * 1000})["leases"]) == 1000
