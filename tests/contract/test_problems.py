"""Every error is application/problem+json with all its members.

It does not matter whether a route, the router or the body parser raised it.
"""

import itertools
import json
from base64 import urlsafe_b64encode
from typing import NamedTuple
from uuid import UUID, uuid1, uuid4

import httpx

from tests.api_client import Api, Json
from tests.contract.document import operations
from tests.contract.hostile_cases import OUT_OF_RANGE
from tests.table import table

UNKNOWN = "01a1e24b-7875-7000-8000-4007af56e171"

LISTS = [
    found.path
    for found in operations()
    if any(parameter["name"] == "cursor" for parameter in found.spec.get("parameters", []))
]
# Every member contains a NUL, which Postgres cannot store.
CURSOR_WITH_NUL = urlsafe_b64encode(
    json.dumps(dict.fromkeys(("id", "name", "at", "worker_id"), "\0")).encode()
).decode()


class InvalidCall(NamedTuple):
    method: str
    path: str
    body: str
    status: int
    code: str
    pointer: str | None = None


INVALID_CALLS = [
    InvalidCall("GET", "/no/such/path", "", 404, "not_found"),
    InvalidCall("GET", "/jobs/", "", 404, "not_found"),
    InvalidCall("DELETE", "/jobs", "", 405, "method_not_allowed"),
    InvalidCall("HEAD", "/claim", "", 405, "method_not_allowed"),
    InvalidCall("GET", "/jobs?state=ready&state=scheduled", "", 422, "validation_failed", "/query/state"),
    InvalidCall("GET", "/jobs?limit=5&limit=5", "", 422, "validation_failed", "/query/limit"),
    InvalidCall("GET", "/dead-letters/groups?by=queue&by=job_type", "", 422, "validation_failed", "/query/by"),
    InvalidCall("GET", f"/jobs/{UNKNOWN}", "", 404, "not_found"),
    InvalidCall("GET", "/jobs/4711", "", 422, "validation_failed", "/path/job_id"),
    InvalidCall("GET", "/jobs?limit=0", "", 422, "validation_failed", "/query/limit"),
    InvalidCall("GET", "/jobs?limit=1001", "", 422, "validation_failed", "/query/limit"),
    InvalidCall("GET", "/jobs?state=sleeping", "", 422, "validation_failed", "/query/state"),
    InvalidCall("GET", "/jobs?stat=ready", "", 422, "validation_failed", "/query/stat"),
    InvalidCall("GET", "/jobs?created_after=2026-01-01T00:00:00", "", 422, "validation_failed", "/query/created_after"),
    InvalidCall("GET", "/jobs?cursor=forged", "", 422, "validation_failed", "/query/cursor"),
    InvalidCall("GET", "/workers?cursor=%00", "", 422, "validation_failed", "/query"),
    InvalidCall("GET", "/dead-letters?cursor=e30=", "", 422, "validation_failed", "/query/cursor"),
    InvalidCall("GET", "/dead-letters/groups?by=mood", "", 422, "validation_failed", "/query/by"),
    InvalidCall("GET", "/queues/no%20spaces/stats", "", 422, "validation_failed", "/path/name"),
    InvalidCall("GET", "/queues/does-not-exist/stats", "", 404, "not_found"),
    InvalidCall("POST", "/workers/unknown/drain", "", 404, "not_found"),
    InvalidCall("POST", "/jobs", "{", 400, "malformed_json"),
    InvalidCall("POST", "/jobs", "", 400, "malformed_json"),
    InvalidCall("POST", "/jobs", "[]", 422, "validation_failed", ""),
    InvalidCall("POST", "/jobs", "{}", 422, "validation_failed", "/job_type"),
    InvalidCall("POST", "/jobs", '{"job_type": "a", "delay_second": 5}', 422, "validation_failed", "/delay_second"),
    InvalidCall("POST", "/jobs", '{"job_type": "a", "priority": 32768}', 422, "validation_failed", "/priority"),
    InvalidCall(
        "POST", "/jobs", '{"job_type": "a", "retry": {"jitter": 2}}', 422, "validation_failed", "/retry/jitter"
    ),
    InvalidCall(
        "POST", "/jobs", '{"job_type": "a", "payload": {"a/b": [0, NaN]}}', 422, "validation_failed", "/payload/a~1b/1"
    ),
    InvalidCall(
        "POST",
        "/jobs/batch",
        '{"jobs": [{"job_type": "a"}, {"job_type": "a", "queue": "b c"}]}',
        422,
        "validation_failed",
        "/jobs/1/queue",
    ),
    InvalidCall("POST", "/jobs/batch", '{"jobs": []}', 422, "validation_failed", "/jobs"),
    InvalidCall(
        "POST",
        "/settle",
        '{"items": [{"lease_token": "x", "outcome": "release"}]}',
        422,
        "validation_failed",
        "/items/0/job_id",
    ),
    InvalidCall("POST", f"/jobs/{UNKNOWN}/complete", '{"lease_token": "x"}', 404, "not_found"),
    InvalidCall("POST", "/jobs/cancel", "{}", 422, "validation_failed", "/filter"),
    InvalidCall("PATCH", f"/jobs/{UNKNOWN}", '{"priority": 1}', 404, "not_found"),
]


@table("call", INVALID_CALLS)
def test_error_is_a_problem_with_all_its_members(call: InvalidCall, http: httpx.Client) -> None:
    response = http.request(call.method, call.path, content=call.body, headers={"X-Request-Id": "req-1"})
    assert response.status_code == call.status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    if call.method == "HEAD":
        return
    problem = response.json()
    assert problem.keys() - {"errors"} == {"type", "title", "status", "detail", "instance", "code"}
    assert (problem["type"], problem["status"], problem["code"]) == (f"/problems/{call.code}", call.status, call.code)
    assert problem["instance"] == "req-1"
    assert problem["title"]
    assert problem["detail"]
    if call.pointer is not None:
        assert [error["pointer"] for error in problem["errors"]] == [call.pointer]
        assert problem["errors"][0].keys() == {"pointer", "code", "detail"}


def test_body_over_the_limit_is_rejected_with_the_limit(http: httpx.Client) -> None:
    response = http.post("/jobs", content=b" " * (1024 * 1024 + 1))
    assert response.status_code == 413
    assert (response.json()["code"], response.json()["limit"]) == ("payload_too_large", 1024 * 1024)


def test_chunked_body_over_the_limit_is_rejected_with_the_limit(http: httpx.Client) -> None:
    """It declares no length and does not end: the broker has to stop reading."""
    unbounded = itertools.repeat(b" " * 65536, 4096)
    response = http.post("/jobs", content=unbounded)
    assert response.status_code == 413
    assert response.json()["limit"] == 1024 * 1024


def test_payload_over_its_limit_is_rejected_with_a_pointer(api: Api) -> None:
    problem = api.post("/jobs", {"job_type": "a", "payload": "x" * (256 * 1024)}, status=413)
    assert (problem["limit"], problem["errors"][0]["pointer"]) == (256 * 1024, "/payload")


def test_wrong_method_returns_an_allow_header(http: httpx.Client) -> None:
    assert http.delete("/livez").headers["allow"] == "GET, HEAD"


def test_wrong_method_of_a_fixed_path_is_405_and_no_invalid_id(http: httpx.Client) -> None:
    """`GET /jobs/batch` is not a job with an invalid id."""
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
    responses = {call: http.request(*call) for call in expected}
    assert {call: (response.status_code, response.headers.get("allow")) for call, response in responses.items()} == {
        call: (405, allowed) for call, allowed in expected.items()
    }


def test_repeated_parameter_is_rejected_by_every_operation_that_has_it(api: Api) -> None:
    """One of the two values would be lost."""
    mismatches = []
    for found in operations():
        for parameter in found.spec.get("parameters", []):
            if parameter["in"] == "query":
                path, name = found.path.replace("{job_id}", UNKNOWN).replace("{name}", api.queue), parameter["name"]
                response = api.http.request(found.method, path, params=[(name, "1"), (name, "1")])
                pointers = [error["pointer"] for error in response.json().get("errors", [])]
                if (response.status_code, pointers) != (422, [f"/query/{name}"]):
                    mismatches.append(f"{found.name} {name}: {response.status_code} {pointers}")
    assert mismatches == []


def test_put_without_a_body_is_rejected_and_changes_nothing(api: Api) -> None:
    """Read as `{}` it would unset the complete configuration."""
    puts = {
        f"/queues/{api.queue}": {"max_running": 5},
        f"/job-types/{api.queue}": {"max_attempts": 5},
        f"/schedules/{api.queue}": {"every_seconds": 3600, "job": {"job_type": "test", "queue": api.queue}},
    }
    assert len(puts) == len([found for found in operations() if found.method == "PUT"])
    for path, body in puts.items():
        before = api.put(path, body)
        rejected = api.http.put(path)
        assert (rejected.status_code, rejected.json()["code"]) == (400, "malformed_json"), path
        assert api.get(path) == before
    for path in puts:
        api.delete(path)


@table("path", LISTS)
@table(
    ("name", "value"), [("limit", 0), ("limit", 1001), ("cursor", "x"), ("cursor", CURSOR_WITH_NUL), ("colour", "red")]
)
def test_invalid_page_parameter_is_rejected_by_every_list(api: Api, path: str, name: str, value: object) -> None:
    path = path.replace("{job_id}", api.enqueue()["id"])
    problem = api.get(path, **{name: value}, status=422)
    assert [error["pointer"] for error in problem["errors"]] == [f"/query/{name}"]


def test_all_lists_are_found_in_the_document() -> None:
    assert len(LISTS) >= 9


@table("path", ["/jobs/{job_id}/attempts", "/dead-letters", "/dead-letters/groups", "/api-keys"])
@table("instant", OUT_OF_RANGE)
def test_cursor_with_an_instant_out_of_range_is_rejected(api: Api, path: str, instant: str) -> None:
    members = {**dict.fromkeys(("ended_at", "at", "latest"), instant), "id": UNKNOWN, "sample": UNKNOWN, "count": "1"}
    cursor = urlsafe_b64encode(json.dumps(members).encode()).decode()
    problem = api.get(path.replace("{job_id}", api.enqueue()["id"]), cursor=cursor, status=422)
    assert [error["pointer"] for error in problem["errors"]] == ["/query/cursor"]


def test_lease_lost_problem_has_state_and_attempt_of_the_job(api: Api) -> None:
    job = api.enqueue()
    problem = api.post(f"/jobs/{job['id']}/complete", {"lease_token": "not-mine"}, status=409)
    assert (problem["code"], problem["job_id"], problem["state"], problem["attempt"]) == (
        "lease_lost",
        job["id"],
        "ready",
        0,
    )


def test_wrong_state_problem_has_the_state_of_the_job(api: Api) -> None:
    job = api.enqueue()
    api.complete(api.claim_one())
    problem = api.post(f"/jobs/{job['id']}/cancel", {}, status=409)
    assert (problem["code"], problem["state"]) == ("wrong_state", "completed")


@table("job_id", [UUID(int=0), UUID(int=2**128 - 1), uuid1(), uuid4(), UUID(UNKNOWN)])
def test_unknown_uuid_of_any_version_is_not_found(job_id: UUID, http: httpx.Client) -> None:
    bodies: dict[str, Json] = {
        "complete_job": {},
        "release_job": {},
        "heartbeat_job": {},
        "fail_job": {"error": {"message": "x"}},
        "snooze_job": {"delay_seconds": 1},
    }
    job_operations = [found for found in operations() if "{job_id}" in found.path]
    for found in job_operations:
        body = {"lease_token": "x", **bodies[found.name]} if found.name in bodies else {}
        response = http.request(
            found.method, found.path.replace("{job_id}", str(job_id)), json=body if found.request_schema else None
        )
        assert (response.status_code, response.json()["code"]) == (404, "not_found"), found.name
    assert len(job_operations) > 10
