"""PATCH /jobs/{id}."""

from typing import Any

import httpx
import pytest

from tests.api_client import Api, parse_time
from tests.database import TestDatabase
from tests.polls import Background
from tests.table import table


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority", -5),
        ("payload", {"new": [1, 2.5]}),
        ("payload", None),
        ("max_attempts", 9),
        ("tags", ["new"]),
        ("tags", []),
        ("metadata", {"who": "me"}),
        ("metadata", {}),
    ],
)
def test_patch_changes_one_field_and_no_other(api: Api, name: str, value: Any) -> None:
    job = api.enqueue(payload={"old": 1}, priority=3, tags=["old"], metadata={"old": 1})
    assert api.patch(f"/jobs/{job['id']}", {name: value}) == {**job, name: value}
    assert api.job(job["id"]) == {**job, name: value}


def test_patched_payload_is_stored_as_sent(api: Api, http: httpx.Client) -> None:
    job = api.enqueue()
    http.patch(f"/jobs/{job['id']}", content=b'{"payload": {"z": 1.50, "a": 1E2}}').raise_for_status()
    assert '{"z": 1.50, "a": 1E2}' in http.get(f"/jobs/{job['id']}").text


def test_empty_patch_changes_nothing(api: Api) -> None:
    job = api.enqueue(delay_seconds=60)
    assert api.patch(f"/jobs/{job['id']}", {}) == job


def test_patched_run_at_in_the_future_schedules_a_ready_job(api: Api, db: TestDatabase) -> None:
    job = api.enqueue()
    later = db.instant(600)
    assert api.patch(f"/jobs/{job['id']}", {"run_at": later}) == {**job, "run_at": later, "state": "scheduled"}
    assert api.claim()["jobs"] == []


def test_patched_run_at_in_the_past_makes_a_scheduled_job_ready(api: Api, db: TestDatabase) -> None:
    job = api.enqueue(delay_seconds=600)
    assert api.patch(f"/jobs/{job['id']}", {"run_at": db.instant(-1)})["state"] == "ready"
    assert api.claim_one()["id"] == job["id"]


def test_patched_run_at_ends_the_back_off(api: Api, db: TestDatabase) -> None:
    job = api.enqueue()
    api.fail(api.claim_one(), retry_after_seconds=600)
    patched = api.patch(f"/jobs/{job['id']}", {"run_at": db.instant(-1)})
    assert (patched["state"], "state_reason" in patched) == ("ready", False)


def test_poller_is_woken_by_a_job_that_a_patch_makes_ready(api: Api, db: TestDatabase, background: Background) -> None:
    job = api.enqueue(delay_seconds=600)
    poller = background.submit(api.claim_one, wait_seconds=20)
    api.patch(f"/jobs/{job['id']}", {"run_at": db.instant(-1)})
    assert poller.result()["id"] == job["id"]


def test_job_with_a_patched_run_at_starts_on_time(api: Api, db: TestDatabase) -> None:
    job = api.enqueue(delay_seconds=600)
    api.patch(f"/jobs/{job['id']}", {"run_at": db.instant(0.3)})
    claimed = api.claim_one(wait_seconds=20)
    assert parse_time(api.job(claimed["id"])["started_at"]) >= parse_time(api.job(job["id"])["run_at"])


def test_patched_priority_applies_to_the_next_claim(api: Api) -> None:
    first, second = api.enqueue(), api.enqueue()
    api.patch(f"/jobs/{second['id']}", {"priority": 1})
    assert [job["id"] for job in api.claim(max_jobs=2)["jobs"]] == [second["id"], first["id"]]


def test_running_job_cannot_be_patched(api: Api) -> None:
    job = api.enqueue()
    api.claim_one()
    problem = api.patch(f"/jobs/{job['id']}", {"priority": 1}, status=409)
    assert (problem["code"], problem["state"]) == ("wrong_state", "running")
    assert api.job(job["id"])["priority"] == 0


def test_finished_job_cannot_be_patched(api: Api) -> None:
    done = api.enqueue()
    api.complete(api.claim_one())
    dead = api.dead_letter()
    cancelled = api.enqueue()
    api.cancel(cancelled)
    for job, state in ((done, "completed"), (dead, "dead"), (cancelled, "cancelled")):
        assert api.patch(f"/jobs/{job['id']}", {"priority": 1}, status=409)["state"] == state


def test_patched_max_attempts_below_the_attempts_made_ends_at_the_next_failure(api: Api) -> None:
    job = api.enqueue(max_attempts=5)
    for _ in range(2):
        api.fail(api.claim_one(wait_seconds=20), retry_after_seconds=0)
    assert api.patch(f"/jobs/{job['id']}", {"max_attempts": 1})["max_attempts"] == 1
    assert api.fail(api.claim_one(wait_seconds=20))["state"] == "dead"


@table(
    ("patch", "pointer"),
    [
        ({"state": "completed"}, "/state"),
        ({"queue": "other"}, "/queue"),
        ({"delay_seconds": 1}, "/delay_seconds"),
        ({"priority": "high"}, "/priority"),
        ({"priority": None}, "/priority"),
        ({"max_attempts": 0}, "/max_attempts"),
        ({"run_at": "2026-01-01T00:00:00"}, "/run_at"),
        ({"run_at": "9999-01-01T00:00:00Z"}, "/run_at"),
        ({"tags": "t"}, "/tags"),
        ({"metadata": {"m": "x" * 17_000}}, "/metadata"),
    ],
)
def test_invalid_patch_is_rejected_and_changes_nothing(api: Api, patch: Any, pointer: str) -> None:
    job = api.enqueue()
    assert api.patch(f"/jobs/{job['id']}", {"max_attempts": 7, **patch}, status=422)["errors"][0]["pointer"] == pointer
    assert api.job(job["id"]) == job


def test_patched_payload_above_the_limit_is_rejected(api: Api) -> None:
    job = api.enqueue()
    assert api.patch(f"/jobs/{job['id']}", {"payload": "x" * 300_000}, status=413)["code"] == "payload_too_large"
