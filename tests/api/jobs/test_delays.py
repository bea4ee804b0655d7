"""run_at, delay_seconds and POST /jobs/{id}/run-now: jobs start on time and not earlier."""

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from tests.api_client import Api, parse_time
from tests.database import TestDatabase
from tests.polls import Background
from tests.table import table

YEAR = 366 * 24 * 60 * 60


@pytest.mark.parametrize("fields", [{"delay_seconds": 60}, {"run_at": 60}])
def test_delayed_job_is_scheduled_and_not_delivered(api: Api, db: TestDatabase, fields: dict[str, Any]) -> None:
    if "run_at" in fields:
        fields = {"run_at": db.instant(fields["run_at"])}
    job = api.enqueue(**fields)
    assert (job["state"], parse_time(job["run_at"]) > parse_time(job["created_at"])) == ("scheduled", True)
    assert api.claim()["jobs"] == []
    assert api.job(job["id"]) == job


def test_run_at_is_stored_exactly(api: Api, db: TestDatabase) -> None:
    at = db.instant(60)
    assert api.enqueue(run_at=at)["run_at"] == at


def test_run_at_of_another_time_zone_is_returned_in_utc(api: Api, db: TestDatabase) -> None:
    at = db.instant(60)
    job = api.enqueue(run_at=datetime.fromisoformat(at).astimezone(timezone(timedelta(hours=2))).isoformat())
    assert (job["run_at"], api.job(job["id"])["run_at"]) == (at, at)


def test_job_with_run_at_in_the_past_is_ready(api: Api, db: TestDatabase) -> None:
    assert api.enqueue(run_at=db.instant(-60))["state"] == "ready"
    assert api.enqueue(run_at="1970-01-01T00:00:00Z")["state"] == "ready"


def test_job_with_zero_delay_is_ready(api: Api) -> None:
    assert api.enqueue(delay_seconds=0)["state"] == "ready"


def test_scheduled_job_becomes_ready_when_it_is_due(api: Api, db: TestDatabase, eventually: Callable[..., Any]) -> None:
    job = api.enqueue(delay_seconds=60)
    other = api.enqueue(delay_seconds=3600)
    db.age(job["id"], 60)
    eventually(lambda: api.job(job["id"])["state"] == "ready")
    assert api.job(other["id"])["state"] == "scheduled"
    assert api.counts() == {"ready": 1, "scheduled": 1}


def test_poller_gets_a_scheduled_job_on_time_and_not_earlier(api: Api, db: TestDatabase) -> None:
    job = api.enqueue(run_at=db.instant(0.3))
    claimed = api.claim_one(wait_seconds=20)
    assert claimed["id"] == job["id"]
    assert parse_time(api.job(job["id"])["started_at"]) >= parse_time(job["run_at"])


def test_waiting_poller_is_woken_when_a_job_becomes_due(
    api: Api, db: TestDatabase, background: Background, eventually: Callable[..., Any]
) -> None:
    poller = background.submit(api.claim_one, wait_seconds=20)
    eventually(lambda: api.get("/stats")["waiting_polls"] == 1)
    job = api.enqueue(delay_seconds=60)
    db.age(job["id"], 60)
    assert poller.result()["id"] == job["id"]


def test_many_due_jobs_become_ready_together(api: Api, db: TestDatabase, eventually: Callable[..., Any]) -> None:
    api.batch(*[{"delay_seconds": 60, "queue": f"{api.queue}{'-b' * (n % 2)}"} for n in range(1000)])
    db.execute("UPDATE jobs SET run_at = run_at - interval '1 minute'")
    eventually(lambda: api.get("/stats")["counts"]["ready"] == 1000)
    assert api.get("/stats")["counts"]["scheduled"] == 0


def test_run_now_makes_a_scheduled_job_ready(api: Api) -> None:
    job = api.enqueue(delay_seconds=600)
    ready = api.post(f"/jobs/{job['id']}/run-now")
    assert (ready["state"], parse_time(ready["run_at"]) < parse_time(job["run_at"])) == ("ready", True)
    assert api.claim_one()["id"] == job["id"]


def test_run_now_wakes_a_poller(api: Api, background: Background) -> None:
    job = api.enqueue(delay_seconds=600)
    poller = background.submit(api.claim_one, wait_seconds=20)
    api.post(f"/jobs/{job['id']}/run-now")
    assert poller.result()["id"] == job["id"]


def test_run_now_ends_the_back_off(api: Api) -> None:
    job = api.enqueue()
    api.fail(api.claim_one(), retry_after_seconds=600)
    assert "state_reason" not in api.post(f"/jobs/{job['id']}/run-now")


def test_run_now_does_not_change_a_ready_job(api: Api) -> None:
    job = api.enqueue()
    assert api.post(f"/jobs/{job['id']}/run-now") == job


def test_run_now_rejects_running_and_finished_jobs(api: Api) -> None:
    job = api.enqueue()
    claimed = api.claim_one()
    assert api.post(f"/jobs/{job['id']}/run-now", status=409)["state"] == "running"
    api.complete(claimed)
    assert api.post(f"/jobs/{job['id']}/run-now", status=409)["state"] == "completed"


def test_delay_of_a_year_is_accepted(api: Api) -> None:
    assert api.enqueue(delay_seconds=YEAR)["state"] == "scheduled"


@table(
    ("fields", "pointer"),
    [
        ({"run_at": "2026-01-01T00:00:00Z", "delay_seconds": 1}, "/delay_seconds"),
        ({"delay_seconds": YEAR + 1}, "/delay_seconds"),
        ({"delay_seconds": -1}, "/delay_seconds"),
        ({"delay_seconds": 1.5}, "/delay_seconds"),
        ({"delay_seconds": 10**30}, "/delay_seconds"),
        ({"run_at": "2099-01-01T00:00:00Z"}, "/run_at"),
        ({"run_at": "9999-12-31T23:59:59Z"}, "/run_at"),
        ({"run_at": "9999-12-31T23:59:59-12:00"}, "/run_at"),
        ({"run_at": "0001-01-01T00:00:00+12:00"}, "/run_at"),
        ({"run_at": "10000-01-01T00:00:00Z"}, "/run_at"),
        ({"run_at": "2026-01-01T00:00:00"}, "/run_at"),
        ({"run_at": "2026-02-30T00:00:00Z"}, "/run_at"),
        ({"run_at": "infinity"}, "/run_at"),
        ({"run_at": "tomorrow"}, "/run_at"),
        ({"run_at": -1}, "/run_at"),
        ({"run_at": None}, "/run_at"),
    ],
)
def test_invalid_run_at_or_delay_is_rejected(api: Api, fields: dict[str, Any], pointer: str) -> None:
    assert api.post("/jobs", {"job_type": "test", **fields}, status=422)["errors"][0]["pointer"] == pointer
