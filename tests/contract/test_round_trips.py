"""GET, edit, PUT or PATCH: a response of GET can be sent back."""

from collections.abc import Iterator
from datetime import timedelta, timezone
from typing import Any

import pytest

from tests.api_client import Api, Json, parse_time
from tests.contract.document import operations
from tests.database import TestDatabase

CONFIGS: dict[str, Json] = {
    "queues": {"max_running": 5, "default_retry": {"base_seconds": 1.5}, "health": {"max_depth": 3}},
    "job-types": {"max_attempts": 4, "payload_schema": {"type": "object", "minProperties": 0.0}},
    "schedules": {
        "every_seconds": 3600,
        "job": {"job_type": "test", "payload": {"n": 1.0}},
        "starts_at": "2026-01-01T02:00:00+02:00",
    },
}
CHANGED: dict[str, Json] = {
    "queues": {
        "name": "other",
        "created_at": "2026-01-01T00:00:00Z",
        "paused_at": "2026-01-01T00:00:00Z",
        "paused_reason": "tired",
    },
    "job-types": {"name": "other", "created_at": "2026-01-01T00:00:00Z", "updated_at": "2200-01-01T00:00:00Z"},
    "schedules": {
        "name": "other",
        "created_at": "2026-01-01T00:00:00Z",
        "updated_at": "2200-01-01T00:00:00Z",
        "next_run_at": "2200-01-01T00:00:00Z",
        "last_run_at": "2026-01-01T00:00:00Z",
        "last_job_id": "01a1e24b-7875-7000-8000-4007af56e171",
        "upcoming": [],
    },
}
WRONG_TYPES: list[Any] = [None, 1, "", [], {}, [1], [None], ["x"], [{}]]
EACH_RESOURCE = pytest.mark.parametrize("resource", CONFIGS)


@pytest.fixture(autouse=True)
def _clean(api: Api) -> Iterator[None]:
    yield
    api.http.delete(f"/job-types/{api.queue}")


def put(api: Api, resource: str) -> str:
    path = f"/{resource}/{api.queue}"
    api.put(path, CONFIGS[resource])
    return path


@EACH_RESOURCE
def test_response_of_get_can_be_sent_with_put(api: Api, resource: str) -> None:
    path = put(api, resource)
    got = api.get(path)
    again = api.put(path, got)
    assert {**again, "updated_at": ""} == {**got, "updated_at": ""}
    assert {**api.get(path), "updated_at": ""} == {**got, "updated_at": ""}


def test_response_of_get_for_a_paused_queue_can_be_sent_with_put(api: Api) -> None:
    path = put(api, "queues")
    paused = api.post(f"{path}/pause", {"reason": "deploy"})
    assert api.put(path, {**paused, "max_running": 7}) == {**paused, "max_running": 7}


def test_stale_copy_of_a_resumed_queue_is_rejected_only_at_paused(api: Api) -> None:
    path = put(api, "queues")
    copy = api.post(f"{path}/pause", {"reason": "deploy"})
    api.post(f"{path}/resume")
    (error,) = api.put(path, {**copy, "max_running": 7}, status=422)["errors"]
    assert (error["pointer"], "resumed after you read it" in error["detail"]) == ("/paused", True)
    copy.pop("paused")
    (first, second) = api.put(path, copy, status=422)["errors"]
    assert all("different value now" in error["detail"] for error in (first, second))


def test_stale_copy_of_a_paused_queue_is_rejected_only_at_paused(api: Api) -> None:
    path = put(api, "queues")
    copy = api.get(path)
    api.post(f"{path}/pause")
    (error,) = api.put(path, copy, status=422)["errors"]
    assert (error["pointer"], "paused after you read it" in error["detail"]) == ("/paused", True)


def test_stale_copy_of_a_queue_that_was_paused_again_can_be_sent_with_put(api: Api) -> None:
    path = put(api, "queues")
    copy = api.post(f"{path}/pause", {"reason": "deploy"})
    again = api.post(f"{path}/pause", {"reason": "incident"})
    assert api.put(path, {**copy, "max_running": 7}) == {**again, "max_running": 7}


def test_stale_copy_of_a_schedule_can_be_sent_with_put_after_a_pause_or_resume(api: Api) -> None:
    """Unlike for a queue, PUT sets `paused` of a schedule."""
    path = put(api, "schedules")
    running = api.get(path)
    paused = api.post(f"{path}/pause")
    assert api.put(path, running)["upcoming"] != []
    assert api.put(path, paused)["upcoming"] == []


def respelled(value: Any) -> Any:
    """The same JSON, in which every instant has another UTC offset and more digits."""
    if isinstance(value, dict):
        return {name: respelled(member) for name, member in value.items()}
    if isinstance(value, list):
        return [respelled(item) for item in value]
    try:
        instant = parse_time(value) if isinstance(value, str) and value.endswith("Z") else None
    except ValueError:
        return value
    return value if instant is None else instant.astimezone(timezone(timedelta(hours=2))).isoformat(" ")


@EACH_RESOURCE
def test_read_only_instants_compare_by_time_and_not_by_notation(api: Api, resource: str) -> None:
    path = put(api, resource)
    got = api.get(path)
    assert respelled(got) != got
    assert api.put(path, respelled(got))["created_at"] == got["created_at"]


def patchable(api: Api) -> dict[str, str]:
    """Resources with PATCH: a queue, a job that waits for its retry, and one that is new."""
    api.configure(max_running=5)
    retried = api.enqueue(payload={"at": "2026-01-01T00:00:00Z"}, tags=["a"])
    api.fail(api.claim_one(worker_id="w"))
    new = api.enqueue(group="g", unique={"key": "k"})
    return {f"/queues/{api.queue}": "name", f"/jobs/{retried['id']}": "state", f"/jobs/{new['id']}": "attempt"}


def test_response_of_get_can_be_sent_with_patch(api: Api) -> None:
    for path in patchable(api):
        got = api.get(path)
        assert api.patch(path, got) == got
        assert api.get(path) == got
        assert api.patch(path, {**respelled(got), "payload": got["payload"]} if "payload" in got else respelled(got))


def test_changed_read_only_member_is_rejected_by_patch(api: Api) -> None:
    for path, member in patchable(api).items():
        got = api.get(path)
        for value in ("other", True, None, [got[member]]):
            (error,) = api.patch(path, {**got, member: value}, status=422)["errors"]
            assert (error["pointer"], error["code"]) == (f"/{member}", "read_only")
        (error,) = api.patch(path, {"created_at": "2026-01-01T00:00:00Z"}, status=422)["errors"]
        assert (error["pointer"], error["code"]) == ("/created_at", "read_only")
        assert api.get(path) == got


def test_patch_of_a_copy_of_a_resource_that_cannot_change_says_why(api: Api) -> None:
    job = api.enqueue()
    copy = api.job(job["id"])
    claimed = api.claim_one()
    assert api.patch(f"/jobs/{job['id']}", copy, status=409)["state"] == "running"
    api.complete(claimed)
    assert api.patch(f"/jobs/{job['id']}", copy, status=409)["state"] == "completed"
    unknown = "01a1e24b-7875-7000-8000-4007af56e171"
    api.patch(f"/jobs/{unknown}", {**copy, "id": unknown}, status=404)
    api.patch(f"/queues/{api.queue}-none", {"name": f"{api.queue}-none"}, status=404)


def test_patch_without_a_body_changes_nothing(api: Api) -> None:
    for path in patchable(api):
        got = api.get(path)
        assert api.http.patch(path).json() == got


def test_every_put_and_patch_is_tested() -> None:
    paths = {found.path for found in operations() if found.method in ("PUT", "PATCH")}
    assert paths == {*(f"/{resource}/{{name}}" for resource in CONFIGS), "/jobs/{job_id}"}


@EACH_RESOURCE
def test_changed_read_only_member_is_rejected(api: Api, resource: str) -> None:
    path = put(api, resource)
    got = api.get(path)
    mismatches = []
    for name, value in CHANGED[resource].items():
        for changed in (value, *[other for other in WRONG_TYPES if other != value]):
            response = api.http.put(path, json={**got, name: changed})
            faults = [(error["pointer"], error["code"]) for error in response.json().get("errors", [])]
            if (response.status_code, faults) != (422, [(f"/{name}", "read_only")]):
                mismatches.append(f"{name} = {changed}: {response.text}")
    assert mismatches == []
    assert api.get(path) == got


@EACH_RESOURCE
def test_all_changed_read_only_members_are_named_in_one_response(api: Api, resource: str) -> None:
    path = put(api, resource)
    problem = api.put(path, {**api.get(path), **CHANGED[resource]}, status=422)
    assert {error["pointer"] for error in problem["errors"]} == {f"/{name}" for name in CHANGED[resource]}
    assert "is read-only" in problem["detail"]


@EACH_RESOURCE
def test_members_that_no_response_has_are_unknown_fields(api: Api, resource: str) -> None:
    path = put(api, resource)
    problem = api.put(path, {**api.get(path), "nam": "x"}, status=422)
    assert [error["code"] for error in problem["errors"]] == ["unknown_field"]


@EACH_RESOURCE
def test_copy_can_be_sent_with_put_after_a_delete(api: Api, resource: str) -> None:
    path = put(api, resource)
    got = api.get(path)
    api.delete(path)
    assert api.put(path, got)["name"] == api.queue
    api.delete(path)
    assert api.put(path, {**got, "name": "other"}, status=422)["errors"][0]["pointer"] == "/name"


def test_schedule_that_has_run_since_it_was_read_can_be_sent_with_put(api: Api, db: TestDatabase) -> None:
    path = put(api, "schedules")
    api.post(f"{path}/run", status=201)
    got = api.get(path)
    later = "last_run_at = last_run_at + interval '1 hour', next_run_at = next_run_at + interval '1 hour'"
    db.execute(f"UPDATE schedules SET {later} WHERE name = $1", api.queue)
    moved = api.get(path)
    assert got["next_run_at"] < moved["next_run_at"]
    assert api.put(path, {**got, "overlap": "skip"})["next_run_at"] == moved["next_run_at"]
