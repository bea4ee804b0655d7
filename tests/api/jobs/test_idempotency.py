"""Idempotency-Key on POST /jobs and POST /jobs/batch."""

from typing import Any

from app.db.lanes import KEY_LANES, digest, lane_of_key
from tests.api_client import Api, Json
from tests.database import TestDatabase
from tests.polls import Background


def enqueue(api: Api, key: str, *, status: int = 201, **fields: Any) -> Json:
    job: Json = api.post("/jobs", {"queue": api.queue, "job_type": "test", **fields}, status=status, key=key)
    return job


def test_same_idempotency_key_returns_the_same_job(api: Api) -> None:
    first = enqueue(api, "k", payload={"n": 1})
    assert enqueue(api, "k", payload={"n": 1}) == first
    assert api.counts() == {"ready": 1}


def test_different_idempotency_key_creates_another_job(api: Api) -> None:
    assert enqueue(api, "k1")["id"] != enqueue(api, "k2")["id"]


def test_repeated_enqueue_returns_the_job_as_it_is_now(api: Api) -> None:
    first = enqueue(api, "k")
    api.complete(api.claim_one(), result=42)
    again = enqueue(api, "k")
    assert (again["id"], again["state"], again["result"]) == (first["id"], "completed", 42)


def test_key_order_of_a_repeated_body_does_not_matter(api: Api) -> None:
    first = api.post("/jobs", {"queue": api.queue, "job_type": "test", "priority": 1}, status=201, key="k")
    again = api.post("/jobs", {"priority": 1, "job_type": "test", "queue": api.queue}, status=201, key="k")
    assert again["id"] == first["id"]


def test_same_idempotency_key_with_another_body_is_rejected(api: Api) -> None:
    enqueue(api, "k", payload=1)
    assert enqueue(api, "k", payload=2, status=422)["code"] == "idempotency_key_reused"
    assert api.counts() == {"ready": 1}


def test_concurrent_enqueues_with_one_key_create_one_job(api: Api, background: Background) -> None:
    jobs = list(background.map(lambda _: enqueue(api, "k"), range(16)))
    assert len({job["id"] for job in jobs}) == 1
    assert api.counts() == {"ready": 1}


def test_idempotency_key_is_in_use_while_the_first_call_runs(api: Api, db: TestDatabase) -> None:
    key = digest("enqueue", "enqueue_job", "k")
    first_call = "INSERT INTO deduplication_keys (lane, digest, expires_at) VALUES ($1, $2, now() + interval '1 day')"
    with db.uncommitted(first_call, lane_of_key(key, KEY_LANES), key):
        assert enqueue(api, "k", status=409)["code"] == "idempotency_key_in_use"
    assert enqueue(api, "k")["state"] == "ready"


def test_rejected_enqueue_does_not_use_up_its_idempotency_key(api: Api) -> None:
    enqueue(api, "k", priority=99_999, status=422)
    assert enqueue(api, "k", priority=1)["priority"] == 1


def test_expired_idempotency_key_can_be_used_again(api: Api, db: TestDatabase) -> None:
    first = enqueue(api, "k", payload=1)
    db.execute("UPDATE deduplication_keys SET expires_at = now() - interval '1 minute'")
    other = enqueue(api, "k", payload=2)
    assert other["id"] != first["id"]
    assert enqueue(api, "k", payload=2)["id"] == other["id"]


def test_single_and_batch_enqueue_do_not_share_idempotency_keys(api: Api) -> None:
    single = enqueue(api, "k")
    batch = api.batch({}, key="k")
    assert batch["results"][0]["job_id"] != single["id"]


def test_claim_may_use_the_idempotency_key_of_an_enqueue(api: Api) -> None:
    job = enqueue(api, "k")
    assert api.claim_one(key="k")["id"] == job["id"]


def test_repeated_batch_returns_the_same_ids_in_the_same_order(api: Api) -> None:
    jobs = [{"queue": f"{api.queue}-{n % 3}", "payload": n} for n in range(12)]
    first = api.batch(*jobs, key="k")
    assert api.batch(*jobs, key="k") == first
    assert len(api.get("/jobs")["items"]) == 12


def test_repeated_non_atomic_batch_returns_the_same_response(api: Api) -> None:
    jobs: list[Json] = [{}, {"job_type": "a b"}, {}]
    first = api.batch(*jobs, key="k", atomic=False, status=207)
    again = api.batch(*jobs, key="k", atomic=False, status=207)
    instances = [response["results"][1]["problem"].pop("instance") for response in (first, again)]
    assert instances[0] != instances[1]  # the instance is the request
    assert again == first
    assert api.counts() == {"ready": 2}


def test_same_idempotency_key_with_another_batch_is_rejected(api: Api) -> None:
    api.batch({}, {}, key="k")
    assert api.batch({}, key="k", status=422)["code"] == "idempotency_key_reused"
    assert api.counts() == {"ready": 2}


def test_rejected_batch_does_not_use_up_its_idempotency_key(api: Api) -> None:
    api.batch({}, {"job_type": "a b"}, key="k", status=422)
    assert api.batch({}, {}, key="k")["created"] == 2


def test_concurrent_batches_with_one_key_are_stored_once(api: Api, background: Background) -> None:
    answers = list(background.map(lambda _: api.batch({}, {"queue": f"{api.queue}-b"}, key="k"), range(8)))
    assert all(answer == answers[0] for answer in answers)
    assert api.counts() == {"ready": 1}


def test_invalid_idempotency_key_is_rejected(api: Api) -> None:
    assert enqueue(api, "k k", status=422)["code"] == "validation_failed"
