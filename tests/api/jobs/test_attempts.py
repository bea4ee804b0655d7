"""GET /jobs/{id}/attempts, and the counters attempt, crashes and deliveries."""

from collections.abc import Callable
from typing import Any

from tests.api_client import Api, Json, parse_time
from tests.database import TestDatabase


def counters(job: Json) -> tuple[int, int, int]:
    return job["attempt"], job["crashes"], job["deliveries"]


def test_job_that_never_ran_has_no_attempts(api: Api) -> None:
    assert api.attempts(api.enqueue()) == []


def test_running_job_has_its_current_attempt(api: Api) -> None:
    job = api.enqueue()
    api.claim_one(worker_id="w1")
    (attempt,) = api.attempts(job)
    assert attempt == {
        "attempt": 1,
        "worker_id": "w1",
        "started_at": api.job(job["id"])["started_at"],
        "outcome": "running",
    }


def test_attempts_are_listed_oldest_first(api: Api, db: TestDatabase, eventually: Callable[..., Any]) -> None:
    job = api.enqueue()
    api.fail(api.claim_one(worker_id="w1"), retry_after_seconds=0, error={"message": "no", "error_type": "Net"})
    api.claim_one(worker_id="w2", wait_seconds=20)
    db.age(job["id"], 61)
    api.complete(api.claim_one(worker_id="w3", wait_seconds=20))
    attempts = api.attempts(job)
    assert [(a["attempt"], a["worker_id"], a["outcome"]) for a in attempts] == [
        (1, "w1", "fail"),
        (2, "w2", "expire"),
        (3, "w3", "complete"),
    ]
    assert [a.get("error", {}).get("error_type") for a in attempts] == ["Net", "lease_expired", None]
    assert all(parse_time(a["started_at"]) <= parse_time(a["ended_at"]) for a in attempts)


def test_dead_job_keeps_its_attempts(api: Api) -> None:
    job = api.enqueue(max_attempts=2)
    api.fail(api.claim_one(), "one", retry_after_seconds=0)
    api.fail(api.claim_one(wait_seconds=20), "two")
    assert api.job(job["id"])["state_reason"] == "attempts_exhausted"
    assert [attempt["error"]["message"] for attempt in api.attempts(job)] == ["one", "two"]


def test_attempt_pages_are_complete_when_the_clock_was_set_back(api: Api, db: TestDatabase) -> None:
    job = api.enqueue(max_attempts=9)
    for n in range(3):
        api.fail(api.claim_one(wait_seconds=20), str(n), retry_after_seconds=0)
    db.execute("UPDATE jobs SET attempts = ARRAY[attempts[3], attempts[1], attempts[2]] WHERE id = $1", job["id"])
    pages = api.pages(f"/jobs/{job['id']}/attempts", limit=1)
    assert [attempt["error"]["message"] for page in pages for attempt in page] == ["2", "0", "1"]


def test_last_twenty_failed_attempts_are_stored(api: Api) -> None:
    job = api.enqueue(max_attempts=100)
    for n in range(23):
        api.fail(api.claim_one(wait_seconds=20), str(n), retry_after_seconds=0)
    assert [attempt["error"]["message"] for attempt in api.attempts(job)] == [str(n) for n in range(3, 23)]
    assert api.attempts(job)[-1]["attempt"] == 23
    api.complete(api.claim_one(wait_seconds=20))
    assert [attempt["outcome"] for attempt in api.attempts(job)] == ["fail"] * 20 + ["complete"]


def test_failure_costs_an_attempt(api: Api) -> None:
    job = api.enqueue()
    api.fail(api.claim_one())
    assert counters(api.job(job["id"])) == (1, 0, 1)


def test_release_and_snooze_return_the_attempt_but_not_the_delivery(api: Api) -> None:
    job = api.enqueue()
    api.release(api.claim_one())
    assert counters(api.job(job["id"])) == (0, 0, 1)
    api.snooze(api.claim_one(), 60)
    snoozed = api.job(job["id"])
    assert (counters(snoozed), snoozed["state_reason"]) == ((0, 0, 2), "snoozed")
    assert api.attempts(job) == []


def test_expired_lease_costs_an_attempt_and_a_crash(api: Api, db: TestDatabase, eventually: Callable[..., Any]) -> None:
    job = api.enqueue()
    api.claim_one()
    db.age(job["id"], 61)
    eventually(lambda: api.job(job["id"])["state"] == "ready")
    assert counters(api.job(job["id"])) == (1, 1, 1)
    assert api.claim_one()["deliveries"] == 2


def test_job_with_three_crashes_is_dead_as_poison(api: Api, db: TestDatabase, eventually: Callable[..., Any]) -> None:
    job = api.enqueue(max_attempts=100)
    for _ in range(3):
        api.claim_one(wait_seconds=20)
        db.age(job["id"], 61)
    eventually(lambda: api.job(job["id"])["state"] == "dead")
    dead = api.job(job["id"])
    assert (dead["state_reason"], counters(dead)) == ("poison", (3, 3, 3))


def test_crash_in_the_last_attempt_exhausts_the_attempts(
    api: Api, db: TestDatabase, eventually: Callable[..., Any]
) -> None:
    job = api.enqueue(max_attempts=1)
    api.claim_one()
    db.age(job["id"], 61)
    eventually(lambda: api.job(job["id"])["state"] == "dead")
    assert api.job(job["id"])["state_reason"] == "attempts_exhausted"
