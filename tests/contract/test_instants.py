"""Instants at the ends of the accepted range are judged in UTC and after rounding to microseconds,
wherever they are sent.
"""

from urllib.parse import quote

from tests.api_client import Api
from tests.database import TestDatabase
from tests.table import every_case

BEFORE_FIRST = ["1970-01-01T00:00:00+01:00", "1969-12-31T23:59:59.9999994Z", "0001-01-01T00:00:00.0000001+23:59"]
AFTER_LAST = [
    "9999-12-30T23:59:59.9999999Z",
    "9999-12-30T23:59:59-00:01",
    "9999-12-31T23:59:59.9999999Z",
    "9999-12-31T23:59:59-23:59",
]
FIRST = ["1969-12-31T23:59:59.9999999Z", "1970-01-01T01:00:00+01:00"]
LAST = ["9999-12-30T23:59:59.9999994Z", "9999-12-31T00:59:59.999999+01:00"]


def statuses(api: Api, instant: str) -> dict[str, int]:
    """Sends an instant wherever the API takes one that may be at either end of the range."""
    job = {"job_type": "test", "queue": api.queue}
    schedule = {"every_seconds": 60, "job": job, "ends_at": instant}
    created_before = {"filter": {"created_before": instant}, "dry_run": True}
    responses = {
        "query": api.http.get(f"/jobs?created_after={quote(instant)}"),
        "query of groups": api.http.get(f"/dead-letters/groups?by=queue&dead_before={quote(instant)}"),
        "filter": api.http.post("/jobs/cancel", json=created_before),
        "filter of a replay": api.http.post("/dead-letters/replay", json={"filter": {"dead_after": instant}}),
        "schedule": api.http.put(f"/schedules/{api.queue}", json=schedule),
    }
    return {name: response.status_code for name, response in responses.items()}


def test_instant_is_rounded_before_its_range_is_checked(api: Api) -> None:
    with every_case() as case:
        for expected, instants in ((422, [*BEFORE_FIRST, *AFTER_LAST]), (200, [*FIRST, *LAST])):
            for instant in instants:
                with case(instant):
                    found = statuses(api, instant)
                    assert {name: status for name, status in found.items() if status not in (expected, 201)} == {}
                    assert expected == 200 or 201 not in found.values()


def test_instant_of_a_job_is_rounded_before_its_range_is_checked(api: Api, db: TestDatabase) -> None:
    id = api.enqueue(run_at="2026-01-01T00:00:00Z")["id"]
    with every_case() as case:
        for accepted, instants in ((False, [*BEFORE_FIRST, *AFTER_LAST, *LAST]), (True, FIRST)):
            for instant in instants:
                job = {"job_type": "test", "queue": api.queue, "run_at": instant}
                with case(instant):
                    assert api.http.post("/jobs", json=job).status_code == (201 if accepted else 422)
                    assert api.http.post("/jobs/batch", json={"jobs": [job]}).status_code == (201 if accepted else 422)
                    patched = api.http.patch(f"/jobs/{id}", json={"run_at": instant})
                    assert patched.status_code == (200 if accepted else 422)
    assert db.value("SELECT min(run_at) >= '1970-01-01 00:00:00+00' FROM jobs")


def test_expiry_of_a_key_is_rounded_before_its_range_is_checked(api: Api, db: TestDatabase) -> None:
    with every_case() as case:
        for instant in [*BEFORE_FIRST, *AFTER_LAST, *FIRST]:
            with case(instant):
                key = {"name": "test", "scopes": ["read"], "expires_at": instant}
                assert api.http.post("/api-keys", json=key).status_code == 422
    assert db.value("SELECT count(*) FROM api_keys") == 0
