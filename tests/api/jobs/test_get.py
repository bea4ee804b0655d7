"""GET /jobs/{id}, and waiting for the result."""

from uuid import UUID, uuid1, uuid4

import httpx
import pytest

from app.jobs import reader
from tests.api_client import Api, parse_time
from tests.broker import RunningBroker, broker_process
from tests.polls import Background
from tests.table import table


@table("job_id", [uuid1(), uuid4(), UUID(int=0), UUID(int=2**128 - 1)])
def test_unknown_id_of_any_uuid_version_is_not_found(api: Api, job_id: UUID) -> None:
    for path in (f"/jobs/{job_id}", f"/jobs/{job_id}/attempts", f"/jobs/{job_id}?wait_seconds=5"):
        assert api.get(path, status=404)["code"] == "not_found"
    for verb in ("cancel", "run-now"):
        assert api.post(f"/jobs/{job_id}/{verb}", status=404)["code"] == "not_found"
    assert api.patch(f"/jobs/{job_id}", {"priority": 1}, status=404)["code"] == "not_found"


def test_job_id_that_is_not_a_uuid_is_rejected(api: Api) -> None:
    assert api.get("/jobs/42", status=422)["errors"][0]["pointer"] == "/path/job_id"


def test_running_job_shows_its_worker_but_not_its_lease_token(api: Api) -> None:
    api.enqueue()
    claimed = api.claim_one(worker_id="w1")
    job = api.job(claimed["id"])
    assert (job["state"], job["worker_id"], job["lease_expires_at"]) == ("running", "w1", claimed["lease_expires_at"])
    assert "lease_token" not in job


def test_completed_job_shows_its_result_and_times(api: Api) -> None:
    api.enqueue()
    claimed = api.claim_one()
    api.complete(claimed, result={"sum": 3})
    job = api.job(claimed["id"])
    assert (job["state"], job["result"]) == ("completed", {"sum": 3})
    assert parse_time(job["created_at"]) <= parse_time(job["started_at"]) <= parse_time(job["finished_at"])
    assert job["duration_ms"] >= 0
    assert "lease_expires_at" not in job


def test_null_result_is_stored_as_a_result(api: Api) -> None:
    api.enqueue()
    claimed = api.claim_one()
    api.complete(claimed, result=None)
    assert api.job(claimed["id"])["result"] is None


def test_failed_job_shows_its_last_error(api: Api) -> None:
    job = api.enqueue()
    api.fail(
        api.claim_one(), error={"message": "no route", "error_type": "Net", "stack": "at x", "details": {"host": None}}
    )
    failed = api.job(job["id"])
    assert (failed["state"], failed["state_reason"]) == ("scheduled", "retry_backoff")
    assert failed["error"] == {"message": "no route", "error_type": "Net", "stack": "at x", "details": {"host": None}}


def test_completed_job_shows_no_error(api: Api) -> None:
    job = api.enqueue()
    api.fail(api.claim_one(), retry_after_seconds=0)
    api.complete(api.claim_one(wait_seconds=20))
    assert "error" not in api.job(job["id"])


def test_waiting_for_a_finished_job_returns_immediately(api: Api) -> None:
    job = api.enqueue()
    api.complete(api.claim_one())
    assert api.job(job["id"], wait_seconds=30)["state"] == "completed"


def test_waiting_for_a_result_ends_when_the_job_completes(api: Api, background: Background) -> None:
    job = api.enqueue()
    waiters = [background.submit(api.job, job["id"], wait_seconds=30) for _ in range(3)]
    api.complete(api.claim_one(), result="done")
    assert [waiter.result()["result"] for waiter in waiters] == ["done"] * 3


def test_waiting_for_a_result_needs_no_polling_in_the_broker_that_completes_the_job(
    api: Api, background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "CHECK_SECONDS", 3600.0)
    first, second = api.enqueue(), api.enqueue()
    other = background.submit(api.job, second["id"], wait_seconds=20)
    waiter = background.submit(api.job, first["id"], wait_seconds=30)
    api.complete(api.claim_one())
    assert waiter.result()["state"] == "completed"
    assert not other.done()
    api.complete(api.claim_one())
    assert other.result()["state"] == "completed"


def test_waiting_for_a_result_ends_when_the_job_dies(api: Api, background: Background) -> None:
    job = api.enqueue()
    waiter = background.submit(api.job, job["id"], wait_seconds=30)
    api.fail(api.claim_one(), retryable=False)
    assert waiter.result()["state"] == "dead"


def test_waiting_for_a_result_ends_when_the_job_is_cancelled(api: Api, background: Background) -> None:
    job = api.enqueue()
    waiter = background.submit(api.job, job["id"], wait_seconds=30)
    api.cancel(job)
    assert waiter.result()["state"] == "cancelled"


@pytest.mark.slow
def test_waiting_for_a_result_ends_when_another_broker_completes_the_job(
    api: Api, broker: RunningBroker, dsn: str, background: Background
) -> None:
    job = api.enqueue()
    with broker_process(dsn) as (other, _process):
        waiter = background.submit(Api(other.http, api.queue).job, job["id"], wait_seconds=30)
        api.complete(api.claim_one(), result="done")
        assert waiter.result()["result"] == "done"


def test_waiting_for_a_result_returns_the_job_when_the_time_is_over(api: Api) -> None:
    job = api.enqueue()
    assert api.job(job["id"], wait_seconds=0.05) == job


@table("query", ["wait_seconds=-1", "wait_seconds=soon", "wait_seconds=nan", "wait_second=1"])
def test_invalid_wait_seconds_is_rejected(api: Api, http: httpx.Client, query: str) -> None:
    job = api.enqueue()
    answer = http.get(f"/jobs/{job['id']}?{query}")
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, f"/query/{query.split('=')[0]}")
