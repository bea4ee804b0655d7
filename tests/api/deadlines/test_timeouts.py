"""timeout_seconds: the maximum duration of one run, however often its lease is extended."""

from datetime import timedelta
from typing import Any

import pytest

from app.leases.lease_ender import DEADLINE_GRACE
from tests.api.deadlines.conftest import RunScansAt, backdate_run, run_past_timeout
from tests.api_client import Api, Json, parse_time
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.table import table


def seconds_between(earlier: str, later: str) -> float:
    return round((parse_time(later) - parse_time(earlier)).total_seconds(), 3)


def started(api: Api, claimed: Json) -> str:
    return str(api.job(claimed["id"])["started_at"])


def test_claim_returns_the_deadline_of_the_run(api: Api) -> None:
    api.enqueue(timeout_seconds=300)
    claimed = api.claim_one()
    assert seconds_between(started(api, claimed), claimed["deadline_at"]) == 300
    assert claimed["lease_seconds"] == 60


def test_job_without_a_timeout_has_no_deadline(api: Api) -> None:
    api.enqueue()
    assert "deadline_at" not in api.claim_one()


@pytest.mark.parametrize("fields", [{}, {"lease_seconds": 3600}], ids=["default", "requested"])
def test_lease_ends_at_the_deadline_at_the_latest(api: Api, fields: Json) -> None:
    api.enqueue(timeout_seconds=30)
    claimed = api.claim_one(**fields)
    assert parse_time(claimed["lease_expires_at"]) == parse_time(claimed["deadline_at"])
    assert claimed["lease_seconds"] == 30


def test_lease_of_a_job_may_be_longer_than_its_timeout(api: Api) -> None:
    api.enqueue(timeout_seconds=30, lease_seconds=600)
    claimed = api.claim_one()
    assert parse_time(claimed["lease_expires_at"]) == parse_time(claimed["deadline_at"])


def test_heartbeat_does_not_extend_a_lease_past_the_deadline(api: Api) -> None:
    api.enqueue(timeout_seconds=90)
    claimed = api.claim_one(lease_seconds=10)
    assert seconds_between(claimed["lease_expires_at"], claimed["deadline_at"]) == 80
    for heartbeat in (
        api.heartbeat_one(claimed, lease_seconds=3600),
        *heartbeat_many(api, claimed, lease_seconds=7200),
    ):
        assert (heartbeat["status"], heartbeat["action"]) == ("extended", "continue")
        assert parse_time(heartbeat["lease_expires_at"]) == parse_time(claimed["deadline_at"])


def heartbeat_many(api: Api, claimed: Json, **fields: Any) -> list[Json]:
    lease = {"job_id": claimed["id"], "lease_token": claimed["lease_token"], **fields}
    heartbeats: list[Json] = api.post("/heartbeat", {"worker_id": "w", "leases": [lease]})["leases"]
    return heartbeats


def test_heartbeat_extends_a_lease_before_the_deadline(api: Api, db: TestDatabase) -> None:
    api.enqueue(timeout_seconds=3600)
    claimed = api.claim_one(lease_seconds=600)
    backdate_run(db, claimed, 300)
    heartbeat = api.heartbeat_one(claimed, lease_seconds=600)
    assert (
        parse_time(claimed["lease_expires_at"])
        < parse_time(heartbeat["lease_expires_at"])
        < parse_time(claimed["deadline_at"])
    )


def test_heartbeat_after_the_deadline_returns_cancel(api_without_scans: Api, db_without_scans: TestDatabase) -> None:
    api_without_scans.enqueue(timeout_seconds=60)
    claimed = api_without_scans.claim_one()
    assert api_without_scans.heartbeat_one(claimed)["action"] == "continue"
    backdate_run(db_without_scans, claimed, 61)
    for heartbeat in (
        api_without_scans.heartbeat_one(claimed),
        *heartbeat_many(api_without_scans, claimed, lease_seconds=600),
    ):
        assert (heartbeat["status"], heartbeat["action"]) == ("extended", "cancel")
        assert parse_time(heartbeat["lease_expires_at"]) == parse_time(claimed["deadline_at"]) - timedelta(seconds=61)
    assert "cancel_requested_at" not in api_without_scans.job(claimed["id"])


def test_run_can_complete_within_the_grace_period_after_its_deadline(
    api_without_scans: Api, db_without_scans: TestDatabase, run_scans_at: RunScansAt
) -> None:
    api_without_scans.enqueue(timeout_seconds=60)
    claimed = api_without_scans.claim_one()
    run_scans_at(parse_time(claimed["deadline_at"]) + DEADLINE_GRACE - timedelta(milliseconds=1))
    assert api_without_scans.job(claimed["id"])["state"] == "running"
    backdate_run(db_without_scans, claimed, 60)
    assert api_without_scans.complete(claimed, result="just in time")["state"] == "completed"


def test_run_fails_after_the_grace_period(api_without_scans: Api, run_scans_at: RunScansAt) -> None:
    api_without_scans.enqueue(timeout_seconds=60)
    claimed = api_without_scans.claim_one()
    run_scans_at(parse_time(claimed["deadline_at"]) + DEADLINE_GRACE)
    job = api_without_scans.job(claimed["id"])
    assert (job["state"], job["state_reason"], job["error"]["error_type"]) == ("scheduled", "retry_backoff", "timeout")


def test_timeout_is_a_failure_that_costs_an_attempt_and_no_crash(api: Api, db: TestDatabase) -> None:
    job = api.enqueue(timeout_seconds=30, retry={"base_seconds": 100, "jitter": 0})
    claimed = run_past_timeout(api, db, worker_id="w")
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
    assert api.heartbeat_one(claimed, status=409)["code"] == "lease_lost"


def test_late_release_after_a_timeout_makes_the_job_due_now(api: Api, db: TestDatabase) -> None:
    job = api.enqueue(timeout_seconds=30, retry={"base_seconds": 100, "jitter": 0})
    claimed = run_past_timeout(api, db)
    postponed = api.job(job["id"])
    assert postponed["state"] == "scheduled"
    api.release(claimed)
    released = api.job(job["id"])
    assert released["state"] == "ready"
    assert seconds_between(released["run_at"], postponed["run_at"]) > 60
    assert api.claim_one()["id"] == job["id"]


def test_timeouts_exhaust_the_attempts_and_are_not_poison(api: Api, db: TestDatabase) -> None:
    job = api.enqueue(timeout_seconds=5, max_attempts=5, retry={"base_seconds": 0})
    for _ in range(5):
        run_past_timeout(api, db)
    letter = api.get(f"/dead-letters/{job['id']}")
    assert (letter["state_reason"], letter["attempt"], letter["crashes"]) == ("attempts_exhausted", 5, 0)
    assert letter["error"]["error_type"] == "timeout"
    assert [letter["id"] for letter in api.get("/dead-letters", queue=api.queue, error_type="timeout")["items"]] == [
        job["id"]
    ]
    assert {attempt["outcome"] for attempt in api.attempts(job)} == {"fail"}


def test_lease_that_expires_before_the_deadline_is_a_crash(api: Api, db: TestDatabase) -> None:
    job = api.enqueue(timeout_seconds=3600)
    claimed = api.claim_one(lease_seconds=10)
    backdate_run(db, claimed, 11)
    wait_until(lambda: api.job(job["id"])["state"] != "running")
    seen = api.job(job["id"])
    assert (seen["state"], seen["attempt"], seen["crashes"], seen["error"]["error_type"]) == (
        "ready",
        1,
        1,
        "lease_expired",
    )


def test_every_run_has_its_own_deadline(api: Api, db: TestDatabase) -> None:
    api.enqueue(timeout_seconds=40, retry={"base_seconds": 0})
    for end in (
        lambda claimed: api.fail(claimed),
        lambda claimed: api.release(claimed),
        lambda claimed: api.snooze(claimed, 0),
        lambda _: None,
    ):
        claimed = api.claim_one(wait_seconds=20)
        assert seconds_between(started(api, claimed), claimed["deadline_at"]) == 40
        end(claimed)


def test_repeated_claim_returns_the_same_deadline(api: Api) -> None:
    api.enqueue(timeout_seconds=40)
    assert api.claim_one(key="k") == api.claim_one(key="k")


def test_cancel_requested_job_that_times_out_is_cancelled(api: Api, db: TestDatabase) -> None:
    job = api.enqueue(timeout_seconds=30)
    claimed = api.claim_one()
    api.cancel(job, status=202)
    backdate_run(db, claimed, 32)
    wait_until(lambda: api.job(job["id"])["state"] == "cancelled")
    assert api.counts() == {"cancelled": 1}


def test_late_settlement_after_a_timeout_is_accepted_before_the_next_delivery(api: Api, db: TestDatabase) -> None:
    api.enqueue(timeout_seconds=30)
    claimed = run_past_timeout(api, db)
    assert api.complete(claimed, result=1)["status"] == "settled"
    assert api.counts() == {"completed": 1}


def test_late_settlement_after_a_timeout_is_rejected_after_the_next_delivery(api: Api, db: TestDatabase) -> None:
    job = api.enqueue(timeout_seconds=30)
    claimed = run_past_timeout(api, db)
    api.post(f"/jobs/{job['id']}/run-now")
    again = api.claim_one()
    assert api.complete(claimed, status=409)["code"] == "lease_lost"
    assert api.complete(again)["state"] == "completed"


@pytest.mark.parametrize("rules", [{"max_running": 1}, {"max_running_per_group": 1}], ids=["max_running", "per group"])
def test_timeout_frees_the_concurrency_slot(api: Api, db: TestDatabase, rules: Json) -> None:
    api.configure(**rules)
    api.enqueue(timeout_seconds=30, group="g", max_attempts=1)
    second = api.enqueue(group="g")
    run_past_timeout(api, db)
    assert api.claim_one(wait_seconds=20)["id"] == second["id"]


def test_replayed_job_keeps_its_timeout(api: Api, db: TestDatabase) -> None:
    job = api.enqueue(timeout_seconds=30, max_attempts=1)
    run_past_timeout(api, db)
    api.post(f"/dead-letters/{job['id']}/replay")
    claimed = api.claim_one()
    assert seconds_between(started(api, claimed), claimed["deadline_at"]) == 30


def test_timeout_of_the_job_type_is_the_default(api: Api) -> None:
    job_type = f"{api.queue}.slow"
    api.put(f"/job-types/{job_type}", {"timeout_seconds": 45})
    api.batch({"job_type": job_type}, {"job_type": job_type, "timeout_seconds": 20}, {})
    claimed = api.claim(max_jobs=3)["jobs"]
    assert [
        seconds_between(started(api, job), job["deadline_at"]) if "deadline_at" in job else None for job in claimed
    ] == [
        45,
        20,
        None,
    ]


@table("value", [0, -1, 1.5, "60", None, 10**9])
def test_invalid_timeout_is_rejected(api: Api, value: object) -> None:
    problem = api.enqueue(status=422, timeout_seconds=value)
    assert [error["pointer"] for error in problem["errors"]] == ["/timeout_seconds"]


def test_heartbeat_after_the_deadline_does_not_request_the_next_one_at_once(
    api_without_scans: Api, db_without_scans: TestDatabase
) -> None:
    api_without_scans.enqueue(timeout_seconds=60)
    claimed = api_without_scans.claim_one()
    backdate_run(db_without_scans, claimed, 61)
    assert api_without_scans.heartbeat("w", claimed)["next_heartbeat_ms"] == 100
