"""One job at a time: who asks for a key that a job has already."""

import pytest

from tests.api import Api, Json, when
from tests.database import TestDatabase
from tests.unique.keys import count_jobs, has


def test_the_first_job_is_created_and_tells_its_key(api: Api) -> None:
    job = api.enqueue(**has("invoice 7/März"))
    assert job["unique_key"] == "invoice 7/März"
    assert api.job(job["id"]) == job
    assert api.get("/jobs", queue=api.queue)["items"] == [job]


def test_the_second_is_answered_with_the_first(api: Api) -> None:
    first = api.enqueue(**has(payload=1, priority=3))
    response = api.http.post("/jobs", json={"queue": api.queue, "job_type": "other", "payload": 2, **has()})
    assert response.status_code == 200
    assert response.headers["job-duplicate"] == "true"
    assert response.headers["location"] == f"/jobs/{first['id']}"
    assert response.json() == first
    assert api.counts() == {"ready": 1}


def test_a_created_job_is_not_called_a_duplicate(api: Api) -> None:
    response = api.http.post("/jobs", json={"queue": api.queue, "job_type": "test", **has()})
    assert response.status_code == 201
    assert "job-duplicate" not in response.headers


def test_return_existing_is_what_happens_if_nothing_is_said(api: Api) -> None:
    first = api.enqueue(**has())
    assert api.enqueue(status=200, **has()) == api.enqueue(status=200, **has(on_duplicate="return_existing")) == first


def test_reject_names_the_job_that_has_the_key(api: Api) -> None:
    first = api.enqueue(**has(on_duplicate="reject"))
    problem = api.enqueue(status=409, **has(on_duplicate="reject"))
    assert (problem["code"], problem["existing_job_id"]) == ("duplicate_job", first["id"])
    assert [error["pointer"] for error in problem["errors"]] == ["/unique/key"]
    assert api.counts() == {"ready": 1}


def test_a_key_is_of_its_queue(api: Api) -> None:
    jobs = [api.enqueue(queue=f"{api.queue}-{name}", **has(on_duplicate="reject")) for name in "abc"]
    assert len({job["id"] for job in jobs}) == 3


def test_keys_differ_by_every_character(api: Api) -> None:
    for key in ("k", "K", "k ", " k", "k\x1f", "kk"):
        api.enqueue(**has(key, on_duplicate="reject"))
    assert api.counts() == {"ready": 6}


def test_jobs_without_a_key_are_not_compared(api: Api) -> None:
    api.enqueue(**has())
    api.enqueue()
    api.enqueue()
    assert api.counts() == {"ready": 3}


@pytest.mark.parametrize("fields", [{}, {"delay_seconds": 3600}, {"group": "g"}], ids=["ready", "scheduled", "group"])
def test_a_waiting_job_has_its_key(api: Api, fields: Json) -> None:
    first = api.enqueue(**has(**fields))
    assert api.enqueue(status=200, **has())["id"] == first["id"]


def test_a_running_job_has_its_key(api: Api) -> None:
    first = api.enqueue(**has())
    api.claim_one()
    again = api.enqueue(status=200, **has())
    assert (again["id"], again["state"]) == (first["id"], "running")


def test_a_job_that_waits_for_its_retry_has_its_key(api: Api) -> None:
    first = api.enqueue(**has())
    api.fail(api.claim_one())
    assert api.enqueue(status=200, **has())["id"] == first["id"]


def test_a_job_that_waits_for_its_turn_has_its_key(api: Api) -> None:
    api.configure(max_running_per_group=1)
    api.enqueue(group="g")
    second = api.enqueue(**has(group="g"))
    assert api.enqueue(status=200, **has(group="g"))["id"] == second["id"]


@pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
def test_a_job_that_has_ended_has_no_key(api: Api, db: TestDatabase, end: str) -> None:
    first = api.enqueue(**has())
    if end == "cancel":
        api.cancel(first)
    else:
        held = api.claim_one()
        api.complete(held) if end == "complete" else api.fail(held, retryable=False)
    assert api.enqueue(**has())["id"] != first["id"]
    assert count_jobs(db) == 2


def test_an_expired_job_has_no_key(api: Api, db: TestDatabase) -> None:
    first = api.enqueue(**has(expires_at=db.instant(-1)))
    api.job(first["id"], wait_seconds=20)
    assert api.enqueue(**has())["id"] != first["id"]


def test_a_purged_job_has_no_key(api: Api) -> None:
    first = api.enqueue(**has())
    api.post(f"/queues/{api.queue}/purge", {"dry_run": False})
    assert api.enqueue(**has())["id"] != first["id"]


def test_the_next_job_of_a_key_has_it_in_turn(api: Api) -> None:
    for _ in range(3):
        job = api.enqueue(**has())
        assert api.enqueue(status=200, **has())["id"] == job["id"]
        api.complete(api.claim_one())
    assert api.counts() == {"completed": 3}


def test_a_duplicate_does_not_count_against_the_places_of_a_full_queue(api: Api) -> None:
    api.configure(max_waiting=1)
    first = api.enqueue(**has())
    assert api.enqueue(status=200, **has())["id"] == first["id"]
    assert api.enqueue(status=200, **has(payload=2, on_duplicate="replace"))["payload"] == 2
    assert api.enqueue(status=429, **has("other"))["code"] == "queue_full"
    assert api.enqueue(status=429, **has("other"))["code"] == "queue_full"  # a refused job has taken no key


def test_a_duplicate_is_told_as_it_is_now(api: Api) -> None:
    first = api.enqueue(**has(delay_seconds=3600))
    api.patch(f"/jobs/{first['id']}", {"priority": 9})
    again = api.enqueue(status=200, **has(priority=1))
    assert (again["priority"], when(again["run_at"])) == (9, when(first["run_at"]))


@pytest.mark.parametrize(
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
def test_what_is_no_unique_key_is_refused(api: Api, unique: object, pointer: str) -> None:
    problem = api.enqueue(status=422, unique=unique)
    assert [error["pointer"] for error in problem["errors"]] == [pointer]
    problem = api.batch({}, {"unique": unique}, status=422)
    assert [error["pointer"] for error in problem["errors"]] == [f"/jobs/1{pointer}"]


def test_the_longest_key_is_taken(api: Api) -> None:
    assert api.enqueue(**has("ü" * 200))["unique_key"] == "ü" * 200
