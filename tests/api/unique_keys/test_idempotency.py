"""A unique key with an Idempotency-Key: a repeated call returns the same status and ids."""

from tests.api.unique_keys.keys import with_key
from tests.api_client import Api, Json


def status_of(api: Api, key: str, **fields: object) -> tuple[int, str | None, str]:
    body = {"queue": api.queue, "job_type": "test", **fields}
    response = api.http.post("/jobs", json=body, headers={"Idempotency-Key": key})
    return response.status_code, response.headers.get("job-duplicate"), response.json()["id"]


def test_repeated_call_that_created_a_job_returns_201_again(api: Api) -> None:
    first = status_of(api, "i", **with_key())
    assert (first[0], first[1]) == (201, None)
    assert status_of(api, "i", **with_key()) == first
    assert status_of(api, "other", **with_key()) == (200, "true", first[2])


def test_repeated_call_that_found_a_duplicate_returns_200_again(api: Api) -> None:
    first = api.enqueue(**with_key())
    assert status_of(api, "i", **with_key()) == (200, "true", first["id"])
    api.complete(api.claim_one())
    second = api.enqueue(**with_key())
    assert status_of(api, "i", **with_key()) == (200, "true", first["id"])
    assert status_of(api, "j", **with_key()) == (200, "true", second["id"])


def test_repeated_call_returns_its_job_when_another_job_has_the_unique_key(api: Api) -> None:
    first = status_of(api, "i", **with_key())
    api.complete(api.claim_one())
    api.enqueue(**with_key())
    assert status_of(api, "i", **with_key()) == first


def test_repeated_call_replaces_once(api: Api) -> None:
    first = api.enqueue(**with_key(payload=1))
    assert status_of(api, "i", **with_key(payload=2, on_duplicate="replace")) == (200, "true", first["id"])
    api.enqueue(status=200, **with_key(payload=3, on_duplicate="replace"))
    assert status_of(api, "i", **with_key(payload=2, on_duplicate="replace")) == (200, "true", first["id"])
    assert api.job(first["id"])["payload"] == 3


def test_rejected_duplicate_does_not_use_up_its_idempotency_key(api: Api) -> None:
    api.enqueue(**with_key())
    api.enqueue(status=409, key="i", **with_key(on_duplicate="reject"))
    api.complete(api.claim_one())
    assert status_of(api, "i", **with_key(on_duplicate="reject"))[0] == 201


def test_another_unique_key_is_another_body_for_the_idempotency_key(api: Api) -> None:
    api.enqueue(key="i", **with_key("a"))
    assert api.enqueue(status=422, key="i", **with_key("b"))["code"] == "idempotency_key_reused"


def test_repeated_batch_with_unique_keys_returns_the_same_response(api: Api) -> None:
    api.enqueue(**with_key("taken"))
    jobs: list[Json] = [with_key("a"), with_key("taken"), with_key("a"), {}, with_key("b", on_duplicate="replace")]
    first = api.batch(*jobs, key="i")
    api.settle(
        *[
            {"job_id": job["id"], "lease_token": job["lease_token"], "outcome": "complete"}
            for job in api.claim(max_jobs=9)["jobs"]
        ]
    )
    assert api.batch(*jobs, key="i") == first
    assert api.counts() == {"completed": 4}


def test_repeated_non_atomic_batch_rejects_the_same_duplicates(api: Api) -> None:
    api.enqueue(**with_key("taken"))
    jobs = [with_key("taken", on_duplicate="reject"), with_key("free"), with_key("taken")]
    first = api.batch(*jobs, key="i", atomic=False, status=207)
    api.complete(api.claim_one())
    again = api.batch(*jobs, key="i", atomic=False, status=207)
    assert [(result["status"], result.get("job_id")) for result in again["results"]] == [
        (result["status"], result.get("job_id")) for result in first["results"]
    ]
    assert [again[name] for name in ("created", "duplicates", "rejected")] == [1, 1, 1]
