"""Every error is application/problem+json with all its members, whoever raised it: a room, the router, or the reading of a body."""

import itertools
import json
from base64 import urlsafe_b64encode
from typing import NamedTuple
from uuid import UUID, uuid1, uuid4

import httpx
import pytest

from tests.api import Api, Json
from tests.contract.document import operations

UNKNOWN = "01a1e24b-7875-7000-8000-4007af56e171"


class Bad(NamedTuple):
    method: str
    path: str
    body: str
    status: int
    code: str
    pointer: str | None = None


BAD = [
    Bad("GET", "/no/such/path", "", 404, "not_found"),
    Bad("GET", "/jobs/", "", 404, "not_found"),
    Bad("DELETE", "/jobs", "", 405, "method_not_allowed"),
    Bad("HEAD", "/claim", "", 405, "method_not_allowed"),
    Bad("GET", "/jobs?state=ready&state=scheduled", "", 422, "validation_failed", "/query/state"),
    Bad("GET", "/jobs?limit=5&limit=5", "", 422, "validation_failed", "/query/limit"),
    Bad("GET", "/dead-letters/groups?by=queue&by=job_type", "", 422, "validation_failed", "/query/by"),
    Bad("GET", f"/jobs/{UNKNOWN}", "", 404, "not_found"),
    Bad("GET", "/jobs/4711", "", 422, "validation_failed", "/path/job_id"),
    Bad("GET", "/jobs?limit=0", "", 422, "validation_failed", "/query/limit"),
    Bad("GET", "/jobs?limit=1001", "", 422, "validation_failed", "/query/limit"),
    Bad("GET", "/jobs?state=sleeping", "", 422, "validation_failed", "/query/state"),
    Bad("GET", "/jobs?stat=ready", "", 422, "validation_failed", "/query/stat"),
    Bad("GET", "/jobs?created_after=2026-01-01T00:00:00", "", 422, "validation_failed", "/query/created_after"),
    Bad("GET", "/jobs?cursor=forged", "", 422, "validation_failed", "/query/cursor"),
    Bad("GET", "/workers?cursor=%00", "", 422, "validation_failed", "/query"),
    Bad("GET", "/dead-letters?cursor=e30=", "", 422, "validation_failed", "/query/cursor"),
    Bad("GET", "/dead-letters/groups?by=mood", "", 422, "validation_failed", "/query/by"),
    Bad("GET", "/queues/no%20spaces/stats", "", 422, "validation_failed", "/path/name"),
    Bad("GET", "/queues/nobody-made-it/stats", "", 404, "not_found"),
    Bad("POST", "/workers/nobody/drain", "", 404, "not_found"),
    Bad("POST", "/jobs", "{", 400, "malformed_json"),
    Bad("POST", "/jobs", "", 400, "malformed_json"),
    Bad("POST", "/jobs", "[]", 422, "validation_failed", ""),
    Bad("POST", "/jobs", "{}", 422, "validation_failed", "/job_type"),
    Bad("POST", "/jobs", '{"job_type": "a", "delay_second": 5}', 422, "validation_failed", "/delay_second"),
    Bad("POST", "/jobs", '{"job_type": "a", "priority": 32768}', 422, "validation_failed", "/priority"),
    Bad("POST", "/jobs", '{"job_type": "a", "retry": {"jitter": 2}}', 422, "validation_failed", "/retry/jitter"),
    Bad(
        "POST", "/jobs", '{"job_type": "a", "payload": {"a/b": [0, NaN]}}', 422, "validation_failed", "/payload/a~1b/1"
    ),
    Bad(
        "POST",
        "/jobs/batch",
        '{"jobs": [{"job_type": "a"}, {"job_type": "a", "queue": "b c"}]}',
        422,
        "validation_failed",
        "/jobs/1/queue",
    ),
    Bad("POST", "/jobs/batch", '{"jobs": []}', 422, "validation_failed", "/jobs"),
    Bad(
        "POST",
        "/settle",
        '{"items": [{"lease_token": "x", "outcome": "release"}]}',
        422,
        "validation_failed",
        "/items/0/job_id",
    ),
    Bad("POST", f"/jobs/{UNKNOWN}/complete", '{"lease_token": "x"}', 404, "not_found"),
    Bad("POST", "/jobs/cancel", "{}", 422, "validation_failed", "/filter"),
    Bad("PATCH", f"/jobs/{UNKNOWN}", '{"priority": 1}', 404, "not_found"),
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: f"{bad.method} {bad.path} {bad.body}"[:80])
def test_an_error_is_a_problem_with_all_its_members(bad: Bad, http: httpx.Client) -> None:
    response = http.request(bad.method, bad.path, content=bad.body, headers={"X-Request-Id": "req-1"})
    assert response.status_code == bad.status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    if bad.method == "HEAD":
        return
    problem = response.json()
    assert problem.keys() - {"errors"} == {"type", "title", "status", "detail", "instance", "code"}
    assert (problem["type"], problem["status"], problem["code"]) == (f"/problems/{bad.code}", bad.status, bad.code)
    assert problem["instance"] == "req-1"
    assert problem["title"]
    assert problem["detail"]
    if bad.pointer is not None:
        assert [fault["pointer"] for fault in problem["errors"]] == [bad.pointer]
        assert problem["errors"][0].keys() == {"pointer", "code", "detail"}


def test_a_body_above_the_cap_is_refused_with_the_limit(http: httpx.Client) -> None:
    response = http.post("/jobs", content=b" " * (1024 * 1024 + 1))
    assert response.status_code == 413
    assert (response.json()["code"], response.json()["limit"]) == ("payload_too_large", 1024 * 1024)


def test_a_chunked_body_above_the_cap_is_refused_too(http: httpx.Client) -> None:
    """It declares no length, and this one never ends by itself: the broker has to stop reading."""
    endless = itertools.repeat(b" " * 65536, 4096)
    response = http.post("/jobs", content=endless)
    assert response.status_code == 413
    assert response.json()["limit"] == 1024 * 1024


def test_a_payload_above_its_own_cap_is_refused_with_a_pointer(api: Api) -> None:
    problem = api.post("/jobs", {"job_type": "a", "payload": "x" * (256 * 1024)}, status=413)
    assert (problem["limit"], problem["errors"][0]["pointer"]) == (256 * 1024, "/payload")


def test_a_wrong_method_names_the_right_ones(http: httpx.Client) -> None:
    assert http.delete("/livez").headers["allow"] == "GET, HEAD"


def test_a_method_that_a_fixed_path_lacks_is_refused_as_such(http: httpx.Client) -> None:
    """`GET /jobs/batch` is not a job with a bad id."""
    expected = {
        ("GET", "/jobs/batch"): "POST",
        ("HEAD", "/jobs/batch"): "POST",
        ("PATCH", "/jobs/batch"): "POST",
        ("GET", "/jobs/cancel"): "POST",
        ("GET", "/jobs/cancel?wait_seconds=1"): "POST",
        ("PATCH", "/jobs/cancel"): "POST",
        ("GET", "/dead-letters/replay"): "POST",
        ("GET", "/dead-letters/purge"): "POST",
        ("POST", "/dead-letters/groups"): "GET, HEAD",
        ("DELETE", "/jobs/batch"): "POST",
    }
    answers = {call: http.request(*call) for call in expected}
    assert {call: (answer.status_code, answer.headers.get("allow")) for call, answer in answers.items()} == {
        call: (405, allowed) for call, allowed in expected.items()
    }


def test_a_repeated_parameter_is_refused_on_every_route_that_takes_it(api: Api) -> None:
    """One of two values would be lost."""
    wrong = []
    for found in operations():
        for parameter in found.spec.get("parameters", []):
            if parameter["in"] == "query":
                path, name = found.path.replace("{job_id}", UNKNOWN).replace("{name}", api.queue), parameter["name"]
                answer = api.http.request(found.method, path, params=[(name, "1"), (name, "1")])
                pointers = [fault["pointer"] for fault in answer.json().get("errors", [])]
                if (answer.status_code, pointers) != (422, [f"/query/{name}"]):
                    wrong.append(f"{found.name} {name}: {answer.status_code} {pointers}")
    assert wrong == []


def test_a_put_without_a_body_changes_nothing(api: Api) -> None:
    """Read as `{}` it would unset the whole configuration."""
    puts = {
        f"/queues/{api.queue}": {"max_running": 5},
        f"/job-types/{api.queue}": {"max_attempts": 5},
        f"/schedules/{api.queue}": {"every_seconds": 3600, "job": {"job_type": "test", "queue": api.queue}},
    }
    assert len(puts) == len([found for found in operations() if found.method == "PUT"])
    for path, body in puts.items():
        before = api.put(path, body)
        refused = api.http.put(path)
        assert (refused.status_code, refused.json()["code"]) == (400, "malformed_json"), path
        assert api.get(path) == before
    for path in puts:
        api.delete(path)


def test_a_forged_cursor_is_refused_by_every_list(api: Api) -> None:
    """Every member of the cursor contains a NUL, which Postgres does not store."""
    forged = urlsafe_b64encode(json.dumps(dict.fromkeys(("id", "name", "at", "worker_id"), "\0")).encode()).decode()
    lists = [
        found
        for found in operations()
        if any(parameter["name"] == "cursor" for parameter in found.spec.get("parameters", []))
    ]
    assert len(lists) >= 7
    statuses = {
        found.path: api.http.get(found.path.replace("{job_id}", UNKNOWN), params={"cursor": forged}).status_code
        for found in lists
    }
    assert {path for path, status in statuses.items() if status not in (404, 422)} == set(), statuses


def test_a_lost_lease_tells_where_the_job_is(api: Api) -> None:
    job = api.enqueue()
    problem = api.post(f"/jobs/{job['id']}/complete", {"lease_token": "not-mine"}, status=409)
    assert (problem["code"], problem["job_id"], problem["state"], problem["attempt"]) == (
        "lease_lost",
        job["id"],
        "ready",
        0,
    )


def test_a_wrong_state_is_named(api: Api) -> None:
    job = api.enqueue()
    api.complete(api.claim_one())
    problem = api.post(f"/jobs/{job['id']}/cancel", {}, status=409)
    assert (problem["code"], problem["state"]) == ("wrong_state", "completed")


@pytest.mark.parametrize(
    "job_id", [UUID(int=0), UUID(int=2**128 - 1), uuid1(), uuid4(), UUID(UNKNOWN)], ids=["nil", "max", "v1", "v4", "v7"]
)
def test_an_unknown_uuid_of_any_version_is_not_found(job_id: UUID, http: httpx.Client) -> None:
    bodies: dict[str, Json] = {
        "complete_job": {},
        "release_job": {},
        "heartbeat_job": {},
        "fail_job": {"error": {"message": "x"}},
        "snooze_job": {"delay_seconds": 1},
    }
    params = [found for found in operations() if "{job_id}" in found.path]
    for found in params:
        body = {"lease_token": "x", **bodies[found.name]} if found.name in bodies else {}
        response = http.request(
            found.method, found.path.replace("{job_id}", str(job_id)), json=body if found.takes else None
        )
        assert (response.status_code, response.json()["code"]) == (404, "not_found"), found.name
    assert len(params) > 10
