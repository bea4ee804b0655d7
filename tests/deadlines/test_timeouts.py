"""timeout_seconds: how long one run may take, however often its lease is extended."""

from datetime import timedelta
from typing import Any

import pytest

from app.leases.settle import GRACE
from tests.api import Api, Json, when
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.deadlines.conftest import SweepAt, begun_earlier, run_too_long


def seconds_between(earlier: str, later: str) -> float:
    return round((when(later) - when(earlier)).total_seconds(), 3)


def started(api: Api, held: Json) -> str:
    return str(api.job(held["id"])["started_at"])


def test_a_claim_tells_the_deadline_of_the_run(api: Api) -> None:
    api.enqueue(timeout_seconds=300)
    held = api.claim_one()
    assert seconds_between(started(api, held), held["deadline_at"]) == 300
    assert held["lease_seconds"] == 60


def test_without_a_timeout_there_is_no_deadline(api: Api) -> None:
    api.enqueue()
    assert "deadline_at" not in api.claim_one()


@pytest.mark.parametrize("fields", [{}, {"lease_seconds": 3600}], ids=["default", "asked for"])
def test_no_lease_outlasts_the_deadline(api: Api, fields: Json) -> None:
    api.enqueue(timeout_seconds=30)
    held = api.claim_one(**fields)
    assert when(held["lease_expires_at"]) == when(held["deadline_at"])
    assert held["lease_seconds"] == 30


def test_a_job_may_ask_for_a_longer_lease_than_its_timeout(api: Api) -> None:
    api.enqueue(timeout_seconds=30, lease_seconds=600)
    held = api.claim_one()
    assert when(held["lease_expires_at"]) == when(held["deadline_at"])


def test_no_heartbeat_extends_a_lease_past_the_deadline(api: Api) -> None:
    api.enqueue(timeout_seconds=90)
    held = api.claim_one(lease_seconds=10)
    assert seconds_between(held["lease_expires_at"], held["deadline_at"]) == 80
    for beat in (api.heartbeat_one(held, lease_seconds=3600), *_many(api, held, lease_seconds=7200)):
        assert (beat["status"], beat["action"]) == ("extended", "continue")
        assert when(beat["lease_expires_at"]) == when(held["deadline_at"])


def _many(api: Api, held: Json, **fields: Any) -> list[Json]:
    lease = {"job_id": held["id"], "lease_token": held["lease_token"], **fields}
    beats: list[Json] = api.post("/heartbeat", {"worker_id": "w", "leases": [lease]})["leases"]
    return beats


def test_heartbeats_extend_a_lease_before_the_deadline(api: Api, db: TestDatabase) -> None:
    api.enqueue(timeout_seconds=3600)
    held = api.claim_one(lease_seconds=600)
    begun_earlier(db, held, 300)
    beat = api.heartbeat_one(held, lease_seconds=600)
    assert when(held["lease_expires_at"]) < when(beat["lease_expires_at"]) < when(held["deadline_at"])


def test_a_heartbeat_after_the_deadline_hears_that_it_should_stop(drowsy: Api, drowsy_db: TestDatabase) -> None:
    drowsy.enqueue(timeout_seconds=60)
    held = drowsy.claim_one()
    assert drowsy.heartbeat_one(held)["action"] == "continue"
    begun_earlier(drowsy_db, held, 61)
    for beat in (drowsy.heartbeat_one(held), *_many(drowsy, held, lease_seconds=600)):
        assert (beat["status"], beat["action"]) == ("extended", "cancel")
        assert when(beat["lease_expires_at"]) == when(held["deadline_at"]) - timedelta(seconds=61)
    assert "cancel_requested_at" not in drowsy.job(held["id"])


def test_within_the_grace_a_run_is_left_alone_and_its_completion_stands(
    drowsy: Api, drowsy_db: TestDatabase, sweep_at: SweepAt
) -> None:
    drowsy.enqueue(timeout_seconds=60)
    held = drowsy.claim_one()
    sweep_at(when(held["deadline_at"]) + GRACE - timedelta(milliseconds=1))
    assert drowsy.job(held["id"])["state"] == "running"
    begun_earlier(drowsy_db, held, 60)
    assert drowsy.complete(held, result="just in time")["state"] == "completed"


def test_after_the_grace_the_run_has_failed(drowsy: Api, sweep_at: SweepAt) -> None:
    drowsy.enqueue(timeout_seconds=60)
    held = drowsy.claim_one()
    sweep_at(when(held["deadline_at"]) + GRACE)
    job = drowsy.job(held["id"])
    assert (job["state"], job["state_reason"], job["error"]["error_type"]) == ("scheduled", "retry_backoff", "timeout")


def test_a_run_that_takes_too_long_is_a_failure_that_spends_an_attempt_and_no_crash(api: Api, db: TestDatabase) -> None:
    job = api.enqueue(timeout_seconds=30, retry={"base_seconds": 100, "jitter": 0})
    held = run_too_long(api, db, worker_id="w")
    seen = api.job(job["id"])
    assert (seen["state"], seen["state_reason"], seen["attempt"], seen["crashes"]) == (
        "scheduled",
        "retry_backoff",
        1,
        0,
    )
    (attempt,) = api.attempts(job)
    assert (attempt["outcome"], attempt["error"]["error_type"], attempt["worker_id"]) == ("fail", "timeout", "w")
    assert seconds_between(attempt["ended_at"], seen["run_at"]) == 100
    assert api.counts() == {"scheduled": 1}
    assert api.heartbeat_one(held, status=409)["code"] == "lease_lost"


def test_timeouts_are_no_poison_and_kill_with_the_last_attempt(api: Api, db: TestDatabase) -> None:
    job = api.enqueue(timeout_seconds=5, max_attempts=5, retry={"base_seconds": 0})
    for _ in range(5):
        run_too_long(api, db)
    letter = api.get(f"/dead-letters/{job['id']}")
    assert (letter["state_reason"], letter["attempt"], letter["crashes"]) == ("attempts_exhausted", 5, 0)
    assert letter["error"]["error_type"] == "timeout"
    assert [one["id"] for one in api.get("/dead-letters", queue=api.queue, error_type="timeout")["items"]] == [
        job["id"]
    ]
    assert {attempt["outcome"] for attempt in api.attempts(job)} == {"fail"}


def test_a_lease_that_runs_out_before_the_deadline_is_a_crash(api: Api, db: TestDatabase) -> None:
    job = api.enqueue(timeout_seconds=3600)
    held = api.claim_one(lease_seconds=10)
    begun_earlier(db, held, 11)
    wait_until(lambda: api.job(job["id"])["state"] != "running")
    seen = api.job(job["id"])
    assert (seen["state"], seen["attempt"], seen["crashes"], seen["error"]["error_type"]) == (
        "ready",
        1,
        1,
        "lease_expired",
    )


def test_every_run_has_a_deadline_of_its_own(api: Api, db: TestDatabase) -> None:
    api.enqueue(timeout_seconds=40, retry={"base_seconds": 0})
    for end in (
        lambda held: api.fail(held),
        lambda held: api.release(held),
        lambda held: api.snooze(held, 0),
        lambda _: None,
    ):
        held = api.claim_one(wait_seconds=20)
        assert seconds_between(started(api, held), held["deadline_at"]) == 40
        end(held)


def test_a_repeated_claim_tells_the_same_deadline(api: Api) -> None:
    api.enqueue(timeout_seconds=40)
    assert api.claim_one(key="k") == api.claim_one(key="k")


def test_a_run_that_takes_too_long_and_was_asked_to_stop_is_cancelled(api: Api, db: TestDatabase) -> None:
    job = api.enqueue(timeout_seconds=30)
    held = api.claim_one()
    api.cancel(job, status=202)
    begun_earlier(db, held, 32)
    wait_until(lambda: api.job(job["id"])["state"] == "cancelled")
    assert api.counts() == {"cancelled": 1}


def test_a_late_word_about_a_run_that_took_too_long_is_taken_while_nobody_else_runs_it(
    api: Api, db: TestDatabase
) -> None:
    api.enqueue(timeout_seconds=30)
    held = run_too_long(api, db)
    assert api.complete(held, result=1)["status"] == "settled"
    assert api.counts() == {"completed": 1}


def test_a_late_word_is_lost_when_somebody_else_runs_it(api: Api, db: TestDatabase) -> None:
    job = api.enqueue(timeout_seconds=30)
    held = run_too_long(api, db)
    api.post(f"/jobs/{job['id']}/run-now")
    again = api.claim_one()
    assert api.complete(held, status=409)["code"] == "lease_lost"
    assert api.complete(again)["state"] == "completed"


@pytest.mark.parametrize("rules", [{"max_running": 1}, {"max_running_per_group": 1}], ids=["max_running", "per group"])
def test_a_run_that_takes_too_long_frees_its_place(api: Api, db: TestDatabase, rules: Json) -> None:
    api.configure(**rules)
    api.enqueue(timeout_seconds=30, group="g", max_attempts=1)
    second = api.enqueue(group="g")
    run_too_long(api, db)
    assert api.claim_one(wait_seconds=20)["id"] == second["id"]


def test_a_replayed_job_keeps_its_timeout(api: Api, db: TestDatabase) -> None:
    job = api.enqueue(timeout_seconds=30, max_attempts=1)
    run_too_long(api, db)
    api.post(f"/dead-letters/{job['id']}/replay")
    held = api.claim_one()
    assert seconds_between(started(api, held), held["deadline_at"]) == 30


def test_the_timeout_of_the_job_type_holds_if_the_job_has_none(api: Api) -> None:
    job_type = f"{api.queue}.slow"
    api.put(f"/job-types/{job_type}", {"timeout_seconds": 45})
    api.batch({"job_type": job_type}, {"job_type": job_type, "timeout_seconds": 20}, {})
    held = api.claim(max_jobs=3)["jobs"]
    assert [
        seconds_between(started(api, job), job["deadline_at"]) if "deadline_at" in job else None for job in held
    ] == [
        45,
        20,
        None,
    ]


@pytest.mark.parametrize("value", [0, -1, 1.5, "60", None, 10**9])
def test_what_is_no_timeout_is_refused(api: Api, value: object) -> None:
    problem = api.enqueue(status=422, timeout_seconds=value)
    assert [error["pointer"] for error in problem["errors"]] == ["/timeout_seconds"]
