"""POST /jobs/{id}/cancel."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.api_client import Api, Json
from tests.database import TestDatabase
from tests.table import table


@pytest.fixture
def cancel_requested_job(api: Api) -> Json:
    """A running job as its worker has claimed it, after a cancellation request."""
    api.enqueue()
    claimed = api.claim_one(worker_id="w1")
    api.cancel(claimed, status=202)
    return claimed


@pytest.mark.parametrize("fields", [{}, {"delay_seconds": 60}])
def test_waiting_job_is_cancelled_immediately(api: Api, fields: dict[str, Any]) -> None:
    job = api.enqueue(**fields)
    cancelled = api.cancel(job)
    assert (cancelled["state"], cancelled["state_reason"]) == ("cancelled", "cancelled_by_user")
    assert cancelled["finished_at"] == cancelled["cancel_requested_at"]
    assert api.job(job["id"]) == cancelled
    assert api.claim()["jobs"] == []


def test_job_in_back_off_is_cancelled_and_keeps_its_attempts(api: Api) -> None:
    job = api.enqueue()
    api.fail(api.claim_one(), "first try")
    assert api.cancel(job)["error"]["message"] == "first try"
    assert [attempt["outcome"] for attempt in api.attempts(job)] == ["fail"]


def test_cancelling_a_cancelled_job_changes_nothing(api: Api) -> None:
    job = api.enqueue()
    assert api.cancel(job) == api.cancel(job)


def test_cancel_needs_no_body(api: Api) -> None:
    job = api.enqueue()
    assert api.post(f"/jobs/{job['id']}/cancel")["state"] == "cancelled"


def test_cancel_accepts_a_reason(api: Api) -> None:
    job = api.enqueue()
    assert api.post(f"/jobs/{job['id']}/cancel", {"reason": "no longer needed"})["state"] == "cancelled"


@table(("body", "pointer"), [({"why": "x"}, "/why"), ({"reason": 3}, "/reason"), ({"reason": "x" * 501}, "/reason")])
def test_invalid_cancel_request_is_rejected_and_cancels_nothing(api: Api, body: Any, pointer: str) -> None:
    job = api.enqueue()
    assert api.post(f"/jobs/{job['id']}/cancel", body, status=422)["errors"][0]["pointer"] == pointer
    assert api.job(job["id"]) == job


def test_cancel_of_a_running_job_requests_its_cancellation(api: Api) -> None:
    job = api.enqueue()
    claimed = api.claim_one(worker_id="w1")
    requested = api.cancel(job, status=202)
    assert (requested["state"], "cancel_requested_at" in requested) == ("running", True)
    assert api.heartbeat_one(claimed)["action"] == "cancel"
    assert api.heartbeat("w1", claimed)["leases"][0]["action"] == "cancel"


def test_heartbeat_without_cancellation_continues(api: Api) -> None:
    api.enqueue()
    assert api.heartbeat_one(api.claim_one())["action"] == "continue"


def test_cancelling_a_running_job_again_changes_nothing(api: Api, cancel_requested_job: Json) -> None:
    first = api.job(cancel_requested_job["id"])
    assert api.cancel(cancel_requested_job, status=200) == first


def test_cancel_requested_job_that_completes_stays_completed(api: Api, cancel_requested_job: Json) -> None:
    assert api.complete(cancel_requested_job, result=1)["state"] == "completed"
    job = api.job(cancel_requested_job["id"])
    assert (job["state"], job["result"], "cancel_requested_at" in job) == ("completed", 1, True)
    assert api.cancel(cancel_requested_job, status=409)["state"] == "completed"


@pytest.mark.parametrize("fields", [{}, {"retryable": False}, {"retry_after_seconds": 0}])
def test_cancel_requested_job_that_fails_is_cancelled(
    api: Api, cancel_requested_job: Json, fields: dict[str, Any]
) -> None:
    assert api.fail(cancel_requested_job, "stopped", **fields)["state"] == "cancelled"
    job = api.job(cancel_requested_job["id"])
    assert (job["state"], job["state_reason"], job["error"]["message"]) == ("cancelled", "cancelled_by_user", "stopped")


def test_cancel_requested_job_that_is_snoozed_is_cancelled(api: Api, cancel_requested_job: Json) -> None:
    assert api.snooze(cancel_requested_job, 5, checkpoint={"page": 3})["state"] == "cancelled"
    assert api.job(cancel_requested_job["id"])["checkpoint"] == {"page": 3}


def test_cancel_requested_job_that_is_released_is_cancelled(api: Api, cancel_requested_job: Json) -> None:
    assert api.release(cancel_requested_job)["state"] == "cancelled"
    assert api.claim()["jobs"] == []


def test_cancel_requested_job_whose_lease_expires_is_cancelled(
    api: Api, db: TestDatabase, cancel_requested_job: Json, eventually: Callable[..., Any]
) -> None:
    db.age(cancel_requested_job["id"], 61)
    eventually(lambda: api.job(cancel_requested_job["id"])["state"] == "cancelled")
    assert [attempt["outcome"] for attempt in api.attempts(cancel_requested_job)] == ["cancel"]
    assert api.counts() == {"cancelled": 1}


def test_repeated_settlement_of_a_cancelled_job_is_already_settled(api: Api, cancel_requested_job: Json) -> None:
    api.release(cancel_requested_job)
    again = api.release(cancel_requested_job)
    assert (again["status"], again["state"]) == ("already_settled", "cancelled")


def test_run_of_a_cancelled_job_is_among_its_attempts(api: Api, cancel_requested_job: Json) -> None:
    api.release(cancel_requested_job)
    (attempt,) = api.attempts(cancel_requested_job)
    assert (attempt["attempt"], attempt["worker_id"], attempt["outcome"]) == (1, "w1", "cancel")


def test_finished_job_cannot_be_cancelled(api: Api) -> None:
    done = api.enqueue()
    api.complete(api.claim_one())
    for job, state in ((done, "completed"), (api.dead_letter(), "dead")):
        problem = api.cancel(job, status=409)
        assert (problem["code"], problem["state"]) == ("wrong_state", state)
