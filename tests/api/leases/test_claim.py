"""POST /claim: which jobs it returns, in which order and with which fields."""

from datetime import datetime, timedelta

import pytest

from tests.api_client import Api, Json
from tests.database import TestDatabase


def test_claim_returns_a_ready_job_under_a_lease(api: Api) -> None:
    job = api.enqueue(payload={"to": "ada"})
    claimed = api.claim_one(worker_id="w1")
    assert claimed["id"] == job["id"]
    assert claimed["payload"] == {"to": "ada"}
    stored = api.job(job["id"])
    assert (stored["state"], stored["worker_id"], stored["attempt"], stored["deliveries"]) == ("running", "w1", 1, 1)


def test_claim_of_an_empty_queue_returns_an_empty_list(api: Api) -> None:
    response = api.claim()
    assert (response["jobs"], response["settled"], response["directive"]) == ([], [], "run")
    assert datetime.fromisoformat(response["server_time"]).tzinfo is not None


def test_an_empty_claim_without_a_wait_has_poll_after_ms(api: Api) -> None:
    """A client that obeys it does not spin. A client that waits may claim again immediately."""
    for claim in (
        {},
        {"wait_seconds": 0},
        {"wait_seconds": 1e-300},
        {"wait_seconds": 0.0001},
        {"wait_seconds": 0.1},
        {"key": "k"},
        {"key": "k", "wait_seconds": 0.0001},
        {"worker_id": "w1", "max_jobs": 5},
    ):
        assert api.claim(**claim)["poll_after_ms"] > 0, claim
    assert api.claim(wait_seconds=0.6)["poll_after_ms"] == 0
    api.enqueue()
    job = api.claim()
    assert (len(job["jobs"]), job["poll_after_ms"]) == (1, 0)


def test_empty_claim_with_settlements_and_a_wait_may_be_repeated_immediately(api: Api) -> None:
    """It does not wait because it carries settlements; the next claim does."""
    for wait, is_immediate in ((20, True), (0, False)):
        api.enqueue()
        job = api.claim_one()
        settlement = {"job_id": job["id"], "lease_token": job["lease_token"], "outcome": "complete"}
        response = api.claim(settle=[settlement], wait_seconds=wait)
        assert (response["jobs"], response["poll_after_ms"] == 0) == ([], is_immediate)


def test_empty_body_claims_one_job_of_the_default_queue_for_60_seconds(api: Api) -> None:
    oldest, _, _ = api.enqueue(queue="default"), api.enqueue(queue="default"), api.enqueue()
    (claimed,) = api.post("/claim", {})["jobs"]
    assert (claimed["id"], claimed["queue"], claimed["lease_seconds"]) == (oldest["id"], "default", 60)


def test_claims_higher_priority_first_then_older_jobs(api: Api) -> None:
    late = [api.enqueue(priority=-1)["id"], api.enqueue(priority=-1)["id"]]
    early = [api.enqueue(priority=7)["id"], api.enqueue(priority=7)["id"]]
    middle = [api.enqueue()["id"]]
    assert [api.claim_one()["id"] for _ in range(5)] == early + middle + late


def test_claimed_batch_is_in_claim_order(api: Api) -> None:
    ids = [api.enqueue(priority=priority)["id"] for priority in (0, 9, -3, 9)]
    assert [job["id"] for job in api.claim(max_jobs=10)["jobs"]] == [ids[1], ids[3], ids[0], ids[2]]


def test_claim_returns_at_most_max_jobs(api: Api) -> None:
    ids = [api.enqueue()["id"] for _ in range(5)]
    assert [job["id"] for job in api.claim(max_jobs=3)["jobs"]] == ids[:3]
    assert [job["id"] for job in api.claim(max_jobs=3)["jobs"]] == ids[3:]


def test_order_of_queues_takes_precedence_over_job_priority(api: Api) -> None:
    second = api.enqueue(queue=f"{api.queue}-second", priority=100)["id"]
    first = api.enqueue(priority=-100)["id"]
    params = {"queues": [api.queue, f"{api.queue}-second"]}
    assert [job["id"] for job in api.claim(max_jobs=1, **params)["jobs"]] == [first]
    assert [job["id"] for job in api.claim(max_jobs=1, **params)["jobs"]] == [second]


def test_claim_fills_up_from_the_next_queue(api: Api) -> None:
    other = f"{api.queue}-other"
    ids = {queue: api.enqueue(queue=queue)["id"] for queue in (other, api.queue)}
    jobs = api.claim(queues=[api.queue, other, api.queue], max_jobs=10)["jobs"]
    assert [(job["id"], job["queue"]) for job in jobs] == [(ids[api.queue], api.queue), (ids[other], other)]


def test_claim_returns_only_the_requested_job_types(api: Api) -> None:
    api.enqueue(job_type="a", priority=10)
    ids = [api.enqueue(job_type=kind)["id"] for kind in ("b", "c")]
    assert [job["id"] for job in api.claim(job_types=["c", "b"], max_jobs=10)["jobs"]] == ids
    assert api.claim(job_types=["d"], max_jobs=10)["jobs"] == []


def test_leased_job_is_not_claimed_again(api: Api) -> None:
    api.enqueue()
    api.claim_one()
    assert api.claim()["jobs"] == []


def test_scheduled_job_is_not_claimed(api: Api) -> None:
    api.enqueue(delay_seconds=3600)
    assert api.claim()["jobs"] == []


def test_claim_of_an_unknown_queue_is_empty_and_does_not_create_it(api: Api) -> None:
    assert api.claim(queues=["unknown"])["jobs"] == []
    api.get("/queues/unknown/stats", status=404)


def test_claimed_job_has_all_fields_that_a_worker_needs(api: Api) -> None:
    sent = {"tags": ["red"], "metadata": {"tenant": "t1"}, "group": "g1", "max_attempts": 9, "payload": [1, None, "ä"]}
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    job = api.http.post(
        "/jobs", json={"queue": api.queue, "job_type": "t", **sent}, headers={"traceparent": trace}
    ).json()
    claimed = api.claim_one()
    assert {name: claimed[name] for name in sent} == sent
    assert claimed["traceparent"] == trace
    assert claimed["created_at"] == job["created_at"]
    assert (claimed["job_type"], claimed["attempt"], claimed["deliveries"]) == ("t", 1, 1)
    assert not {"checkpoint", "progress"} & claimed.keys()


def test_only_the_claim_response_contains_the_lease_token(api: Api) -> None:
    job = api.enqueue()
    token = api.claim_one()["lease_token"]
    assert token not in api.http.get(f"/jobs/{job['id']}").text
    assert token not in api.http.get(f"/jobs/{job['id']}/attempts").text


def test_claim_returns_checkpoint_and_progress_of_the_previous_run(api: Api) -> None:
    api.enqueue()
    held = api.claim_one()
    progress = {"percent": 40.5, "stage": "upload", "message": "page 4"}
    api.heartbeat_one(held, checkpoint={"page": 4, "seen": None}, progress=progress)
    api.release(held)
    claimed = api.claim_one()
    assert (claimed["checkpoint"], claimed["progress"]) == ({"page": 4, "seen": None}, progress)


def test_a_null_checkpoint_is_a_checkpoint(api: Api) -> None:
    api.enqueue()
    held = api.claim_one()
    api.snooze(held, 0, checkpoint=None)
    claimed = api.claim_one(wait_seconds=20)
    assert "checkpoint" in claimed
    assert claimed["checkpoint"] is None


def test_claim_response_has_cache_control_no_store(api: Api) -> None:
    assert api.http.post("/claim", json={"queues": [api.queue]}).headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("job", "claim", "expected"),
    [({}, {}, 60), ({"lease_seconds": 30}, {}, 30), ({"lease_seconds": 30}, {"lease_seconds": 5}, 5)],
)
def test_lease_length_comes_from_the_claim_then_the_job_then_the_settings(
    api: Api, db: TestDatabase, job: Json, claim: Json, expected: int
) -> None:
    api.enqueue(**job)
    claimed = api.claim_one(**claim)
    row = db.row(
        "SELECT lease_expires_at - started_at AS lease, lease_expires_at FROM jobs WHERE id = $1", claimed["id"]
    )
    assert claimed["lease_seconds"] == expected
    assert row["lease"] == timedelta(seconds=expected)
    assert datetime.fromisoformat(claimed["lease_expires_at"]) == row["lease_expires_at"]
