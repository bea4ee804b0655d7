"""A unique key together with an Idempotency-Key: the repeated call gives the same status and ids."""

from tests.api import Api, Json
from tests.unique.keys import has


def status_of(api: Api, key: str, **fields: object) -> tuple[int, str | None, str]:
    body = {"queue": api.queue, "job_type": "test", **fields}
    response = api.http.post("/jobs", json=body, headers={"Idempotency-Key": key})
    return response.status_code, response.headers.get("job-duplicate"), response.json()["id"]


def test_a_repeated_call_that_created_says_created(api: Api) -> None:
    first = status_of(api, "i", **has())
    assert (first[0], first[1]) == (201, None)
    assert status_of(api, "i", **has()) == first
    assert status_of(api, "other", **has()) == (200, "true", first[2])


def test_a_repeated_call_that_found_a_duplicate_says_so_again(api: Api) -> None:
    first = api.enqueue(**has())
    assert status_of(api, "i", **has()) == (200, "true", first["id"])
    api.complete(api.claim_one())
    second = api.enqueue(**has())
    assert status_of(api, "i", **has()) == (200, "true", first["id"])
    assert status_of(api, "j", **has()) == (200, "true", second["id"])


def test_a_repeated_call_that_created_says_so_when_another_has_the_key(api: Api) -> None:
    first = status_of(api, "i", **has())
    api.complete(api.claim_one())
    api.enqueue(**has())
    assert status_of(api, "i", **has()) == first


def test_a_repeated_call_replaces_once(api: Api) -> None:
    first = api.enqueue(**has(payload=1))
    assert status_of(api, "i", **has(payload=2, on_duplicate="replace")) == (200, "true", first["id"])
    api.enqueue(status=200, **has(payload=3, on_duplicate="replace"))
    assert status_of(api, "i", **has(payload=2, on_duplicate="replace")) == (200, "true", first["id"])
    assert api.job(first["id"])["payload"] == 3


def test_a_rejected_call_uses_no_idempotency_key_up(api: Api) -> None:
    api.enqueue(**has())
    api.enqueue(status=409, key="i", **has(on_duplicate="reject"))
    api.complete(api.claim_one())
    assert status_of(api, "i", **has(on_duplicate="reject"))[0] == 201


def test_another_unique_key_is_another_body(api: Api) -> None:
    api.enqueue(key="i", **has("a"))
    assert api.enqueue(status=422, key="i", **has("b"))["code"] == "idempotency_key_reused"


def test_a_repeated_batch_gives_the_same_answer(api: Api) -> None:
    api.enqueue(**has("taken"))
    jobs: list[Json] = [has("a"), has("taken"), has("a"), {}, has("b", on_duplicate="replace")]
    first = api.batch(*jobs, key="i")
    api.settle(
        *[
            {"job_id": job["id"], "lease_token": job["lease_token"], "outcome": "complete"}
            for job in api.claim(max_jobs=9)["jobs"]
        ]
    )
    assert api.batch(*jobs, key="i") == first
    assert api.counts() == {"completed": 4}


def test_a_repeated_batch_that_is_not_atomic_rejects_the_same(api: Api) -> None:
    api.enqueue(**has("taken"))
    jobs = [has("taken", on_duplicate="reject"), has("free"), has("taken")]
    first = api.batch(*jobs, key="i", atomic=False, status=207)
    api.complete(api.claim_one())
    again = api.batch(*jobs, key="i", atomic=False, status=207)
    assert [(one["status"], one.get("job_id")) for one in again["results"]] == [
        (one["status"], one.get("job_id")) for one in first["results"]
    ]
    assert [again[name] for name in ("created", "duplicates", "rejected")] == [1, 1, 1]
