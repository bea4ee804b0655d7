"""Unique keys of single enqueues."""

import pytest

from tests.api.unique_keys.keys import count_jobs, with_key
from tests.api_client import Api, Json, parse_time
from tests.database import TestDatabase
from tests.table import table


def test_created_job_shows_its_unique_key(api: Api) -> None:
    job = api.enqueue(**with_key("invoice 7/März"))
    assert job["unique_key"] == "invoice 7/März"
    assert api.job(job["id"]) == job
    assert api.get("/jobs", queue=api.queue)["items"] == [job]


def test_duplicate_enqueue_returns_the_existing_job(api: Api) -> None:
    first = api.enqueue(**with_key(payload=1, priority=3))
    response = api.http.post("/jobs", json={"queue": api.queue, "job_type": "other", "payload": 2, **with_key()})
    assert response.status_code == 200
    assert response.headers["job-duplicate"] == "true"
    assert response.headers["location"] == f"/jobs/{first['id']}"
    assert response.json() == first
    assert api.counts() == {"ready": 1}


def test_created_job_is_not_reported_as_duplicate(api: Api) -> None:
    response = api.http.post("/jobs", json={"queue": api.queue, "job_type": "test", **with_key()})
    assert response.status_code == 201
    assert "job-duplicate" not in response.headers


def test_return_existing_is_the_default_of_on_duplicate(api: Api) -> None:
    first = api.enqueue(**with_key())
    assert (
        api.enqueue(status=200, **with_key())
        == api.enqueue(status=200, **with_key(on_duplicate="return_existing"))
        == first
    )


def test_rejected_duplicate_names_the_existing_job(api: Api) -> None:
    first = api.enqueue(**with_key(on_duplicate="reject"))
    problem = api.enqueue(status=409, **with_key(on_duplicate="reject"))
    assert (problem["code"], problem["existing_job_id"]) == ("duplicate_job", first["id"])
    assert [error["pointer"] for error in problem["errors"]] == ["/unique/key"]
    assert api.counts() == {"ready": 1}


def test_unique_keys_belong_to_their_queue(api: Api) -> None:
    jobs = [api.enqueue(queue=f"{api.queue}-{name}", **with_key(on_duplicate="reject")) for name in "abc"]
    assert len({job["id"] for job in jobs}) == 3


def test_unique_keys_are_compared_exactly(api: Api) -> None:
    for key in ("k", "K", "k ", " k", "k\x1f", "kk"):
        api.enqueue(**with_key(key, on_duplicate="reject"))
    assert api.counts() == {"ready": 6}


def test_jobs_without_a_unique_key_are_never_duplicates(api: Api) -> None:
    api.enqueue(**with_key())
    api.enqueue()
    api.enqueue()
    assert api.counts() == {"ready": 3}


@pytest.mark.parametrize("fields", [{}, {"delay_seconds": 3600}, {"group": "g"}], ids=["ready", "scheduled", "group"])
def test_waiting_job_has_its_unique_key(api: Api, fields: Json) -> None:
    first = api.enqueue(**with_key(**fields))
    assert api.enqueue(status=200, **with_key())["id"] == first["id"]


def test_running_job_has_its_unique_key(api: Api) -> None:
    first = api.enqueue(**with_key())
    api.claim_one()
    again = api.enqueue(status=200, **with_key())
    assert (again["id"], again["state"]) == (first["id"], "running")


def test_job_in_back_off_has_its_unique_key(api: Api) -> None:
    first = api.enqueue(**with_key())
    api.fail(api.claim_one())
    assert api.enqueue(status=200, **with_key())["id"] == first["id"]


def test_pending_job_has_its_unique_key(api: Api) -> None:
    api.configure(max_running_per_group=1)
    api.enqueue(group="g")
    second = api.enqueue(**with_key(group="g"))
    assert api.enqueue(status=200, **with_key(group="g"))["id"] == second["id"]


@pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
def test_finished_job_frees_its_unique_key(api: Api, db: TestDatabase, end: str) -> None:
    first = api.enqueue(**with_key())
    if end == "cancel":
        api.cancel(first)
    else:
        claimed = api.claim_one()
        api.complete(claimed) if end == "complete" else api.fail(claimed, retryable=False)
    assert api.enqueue(**with_key())["id"] != first["id"]
    assert count_jobs(db) == 2


def test_job_that_missed_its_start_deadline_frees_its_unique_key(api: Api, db: TestDatabase) -> None:
    first = api.enqueue(**with_key(expires_at=db.instant(-1)))
    api.job(first["id"], wait_seconds=20)
    assert api.enqueue(**with_key())["id"] != first["id"]


def test_purged_job_frees_its_unique_key(api: Api) -> None:
    first = api.enqueue(**with_key())
    api.post(f"/queues/{api.queue}/purge", {"dry_run": False})
    assert api.enqueue(**with_key())["id"] != first["id"]


def test_next_job_with_the_unique_key_gets_it(api: Api) -> None:
    for _ in range(3):
        job = api.enqueue(**with_key())
        assert api.enqueue(status=200, **with_key())["id"] == job["id"]
        api.complete(api.claim_one())
    assert api.counts() == {"completed": 3}


def test_duplicate_is_accepted_by_a_full_queue(api: Api) -> None:
    api.configure(max_waiting=1)
    first = api.enqueue(**with_key())
    assert api.enqueue(status=200, **with_key())["id"] == first["id"]
    assert api.enqueue(status=200, **with_key(payload=2, on_duplicate="replace"))["payload"] == 2
    assert api.enqueue(status=429, **with_key("other"))["code"] == "queue_full"
    # A rejected job acquires no key
    assert api.enqueue(status=429, **with_key("other"))["code"] == "queue_full"


def test_duplicate_enqueue_returns_the_job_as_it_is_now(api: Api) -> None:
    first = api.enqueue(**with_key(delay_seconds=3600))
    api.patch(f"/jobs/{first['id']}", {"priority": 9})
    again = api.enqueue(status=200, **with_key(priority=1))
    assert (again["priority"], parse_time(again["run_at"])) == (9, parse_time(first["run_at"]))


@table(
    ("unique", "pointer"),
    [
        ({}, "/unique/key"),
        ({"key": ""}, "/unique/key"),
        ({"key": "x" * 201}, "/unique/key"),
        ({"key": "a\x00b"}, "/unique/key"),
        ({"key": 7}, "/unique/key"),
        ({"key": None}, "/unique/key"),
        ({"key": "k", "for_seconds": 0}, "/unique/for_seconds"),
        ({"key": "k", "for_seconds": -1}, "/unique/for_seconds"),
        ({"key": "k", "for_seconds": 1.5}, "/unique/for_seconds"),
        ({"key": "k", "for_seconds": 10**12}, "/unique/for_seconds"),
        ({"key": "k", "on_duplicate": "ignore"}, "/unique/on_duplicate"),
        ({"key": "k", "on_duplicated": "reject"}, "/unique/on_duplicated"),
        ("k", "/unique"),
        (None, "/unique"),
    ],
)
def test_invalid_unique_key_is_rejected(api: Api, unique: object, pointer: str) -> None:
    problem = api.enqueue(status=422, unique=unique)
    assert [error["pointer"] for error in problem["errors"]] == [pointer]
    problem = api.batch({}, {"unique": unique}, status=422)
    assert [error["pointer"] for error in problem["errors"]] == [f"/jobs/1{pointer}"]


def test_longest_unique_key_is_accepted(api: Api) -> None:
    assert api.enqueue(**with_key("ü" * 200))["unique_key"] == "ü" * 200
