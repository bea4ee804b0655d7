"""POST /jobs/{id}/cancel."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.api import Api, Json
from tests.database import TestDatabase


@pytest.fixture
def asked_to_stop(api: Api) -> Json:
    """A running job as its worker holds it, after somebody has cancelled it."""
    api.enqueue()
    claimed = api.claim_one(worker_id="w1")
    api.cancel(claimed, status=202)
    return claimed


@pytest.mark.parametrize("fields", [{}, {"delay_seconds": 60}])
def test_a_waiting_job_is_cancelled_at_once(api: Api, fields: dict[str, Any]) -> None:
    job = api.enqueue(**fields)
    cancelled = api.cancel(job)
    assert (cancelled["state"], cancelled["state_reason"]) == ("cancelled", "cancelled_by_user")
    assert cancelled["finished_at"] == cancelled["cancel_requested_at"]
    assert api.job(job["id"]) == cancelled
    assert api.claim()["jobs"] == []


def test_a_job_that_waits_for_its_retry_is_cancelled_with_its_history(api: Api) -> None:
    job = api.enqueue()
    api.fail(api.claim_one(), "first try")
    assert api.cancel(job)["error"]["message"] == "first try"
    assert [attempt["outcome"] for attempt in api.attempts(job)] == ["fail"]


def test_a_cancelled_job_is_cancelled_again(api: Api) -> None:
    job = api.enqueue()
    assert api.cancel(job) == api.cancel(job)


def test_cancelling_needs_no_body(api: Api) -> None:
    job = api.enqueue()
    assert api.post(f"/jobs/{job['id']}/cancel")["state"] == "cancelled"


def test_a_reason_is_taken(api: Api) -> None:
    job = api.enqueue()
    assert api.post(f"/jobs/{job['id']}/cancel", {"reason": "no longer needed"})["state"] == "cancelled"


@pytest.mark.parametrize(
    ("body", "pointer"), [({"why": "x"}, "/why"), ({"reason": 3}, "/reason"), ({"reason": "x" * 501}, "/reason")]
)
def test_a_bad_body_is_pointed_at_and_cancels_nothing(api: Api, body: Any, pointer: str) -> None:
    job = api.enqueue()
    assert api.post(f"/jobs/{job['id']}/cancel", body, status=422)["errors"][0]["pointer"] == pointer
    assert api.job(job["id"]) == job


def test_a_running_job_is_asked_to_stop(api: Api) -> None:
    job = api.enqueue()
    claimed = api.claim_one(worker_id="w1")
    params = api.cancel(job, status=202)
    assert (params["state"], "cancel_requested_at" in params) == ("running", True)
    assert api.heartbeat_one(claimed)["action"] == "cancel"
    assert api.heartbeat("w1", claimed)["leases"][0]["action"] == "cancel"


def test_a_worker_that_was_not_asked_goes_on(api: Api) -> None:
    api.enqueue()
    assert api.heartbeat_one(api.claim_one())["action"] == "continue"


def test_asking_again_changes_nothing(api: Api, asked_to_stop: Json) -> None:
    first = api.job(asked_to_stop["id"])
    assert api.cancel(asked_to_stop, status=200) == first


def test_a_job_that_completes_all_the_same_stays_completed(api: Api, asked_to_stop: Json) -> None:
    assert api.complete(asked_to_stop, result=1)["state"] == "completed"
    job = api.job(asked_to_stop["id"])
    assert (job["state"], job["result"], "cancel_requested_at" in job) == ("completed", 1, True)
    assert api.cancel(asked_to_stop, status=409)["state"] == "completed"


@pytest.mark.parametrize("fields", [{}, {"retryable": False}, {"retry_after_seconds": 0}])
def test_a_job_that_fails_after_it_was_asked_is_cancelled(
    api: Api, asked_to_stop: Json, fields: dict[str, Any]
) -> None:
    assert api.fail(asked_to_stop, "stopped", **fields)["state"] == "cancelled"
    job = api.job(asked_to_stop["id"])
    assert (job["state"], job["state_reason"], job["error"]["message"]) == ("cancelled", "cancelled_by_user", "stopped")


def test_a_job_that_is_snoozed_after_it_was_asked_is_cancelled(api: Api, asked_to_stop: Json) -> None:
    assert api.snooze(asked_to_stop, 5, checkpoint={"page": 3})["state"] == "cancelled"
    assert api.job(asked_to_stop["id"])["checkpoint"] == {"page": 3}


def test_a_job_that_is_released_after_it_was_asked_is_cancelled(api: Api, asked_to_stop: Json) -> None:
    assert api.release(asked_to_stop)["state"] == "cancelled"
    assert api.claim()["jobs"] == []


def test_a_job_whose_lease_runs_out_after_it_was_asked_is_cancelled(
    api: Api, db: TestDatabase, asked_to_stop: Json, eventually: Callable[..., Any]
) -> None:
    db.age(asked_to_stop["id"], 61)
    eventually(lambda: api.job(asked_to_stop["id"])["state"] == "cancelled")
    assert [attempt["outcome"] for attempt in api.attempts(asked_to_stop)] == ["cancel"]
    assert api.counts() == {"cancelled": 1}


def test_the_worker_hears_that_it_was_settled_when_it_repeats_the_call(api: Api, asked_to_stop: Json) -> None:
    api.release(asked_to_stop)
    again = api.release(asked_to_stop)
    assert (again["status"], again["state"]) == ("already_settled", "cancelled")


def test_the_run_of_a_cancelled_job_is_among_its_attempts(api: Api, asked_to_stop: Json) -> None:
    api.release(asked_to_stop)
    (attempt,) = api.attempts(asked_to_stop)
    assert (attempt["attempt"], attempt["worker_id"], attempt["outcome"]) == (1, "w1", "cancel")


def test_a_finished_job_cannot_be_cancelled(api: Api) -> None:
    done = api.enqueue()
    api.complete(api.claim_one())
    for job, state in ((done, "completed"), (api.dead(), "dead")):
        problem = api.cancel(job, status=409)
        assert (problem["code"], problem["state"]) == ("wrong_state", state)
