"""One response lists all errors of a body: of its fields, across its fields, and of settings."""

from typing import Any

from tests.api_client import Api, Json
from tests.table import table

FAR = 10**9  # more seconds than the settings allow
JOB_ID = "01a1e24b-7875-7000-8000-4007af56e171"
SETTLEMENT = {"job_id": JOB_ID, "lease_token": "x"}
BOTH: Json = {"run_at": "2200-01-01T00:00:00Z", "delay_seconds": 1}
KEPT_PARENTS = {"depends_on": ["x"], "unique": {"key": "k", "on_duplicate": "replace"}}

CASES: list[tuple[str, str, Any, set[str]]] = [
    ("POST", "/jobs", {"priority": "x", **BOTH}, {"/job_type", "/priority", "/delay_seconds"}),
    ("POST", "/jobs", {"job_type": "a", "run_at": 5, "delay_seconds": "x"}, {"/run_at", "/delay_seconds"}),
    ("POST", "/jobs", {"job_type": 1, "on_parent_failure": "run"}, {"/job_type", "/on_parent_failure"}),
    ("POST", "/jobs", {"job_type": 1, **KEPT_PARENTS}, {"/job_type", "/unique/on_duplicate"}),
    (
        "POST",
        "/jobs",
        {"job_type": "a", **KEPT_PARENTS, **BOTH, "delay_seconds": FAR, "expires_at": "2200-01-01T00:00:00Z"},
        {"/run_at", "/delay_seconds", "/depends_on/0", "/unique/on_duplicate", "/expires_at"},
    ),
    ("POST", "/jobs", {"job_type": "a", "depends_on": ["x", JOB_ID, "y"]}, {"/depends_on/0", "/depends_on/2"}),
    (
        "POST",
        "/jobs",
        {"job_type": "a", "payload": [0] * 10_001, "delay_seconds": FAR},
        {"/payload", "/delay_seconds"},
    ),
    (
        "POST",
        "/jobs/batch",
        {"jobs": [{"job_type": "a", "tag": 1, **BOTH}, {"job_type": "a"}, {"job_type": "a", "delay_seconds": FAR}]},
        {"/jobs/0/tag", "/jobs/0/delay_seconds", "/jobs/2/delay_seconds"},
    ),
    (
        "POST",
        "/jobs/batch",
        {"jobs": [{"job_type": "a", "depends_on": ["x", "y"]}, {"job_type": "a", "depends_on": ["z"]}]},
        {"/jobs/0/depends_on/0", "/jobs/0/depends_on/1", "/jobs/1/depends_on/0"},
    ),
    (
        "POST",
        "/claim",
        {"max_jobs": 0, "queues": [], "worker_id": "", "settle": [{**SETTLEMENT, "outcome": "snooze"}]},
        {"/max_jobs", "/queues", "/worker_id", "/settle/0/delay_seconds"},
    ),
    (
        "POST",
        "/settle",
        {
            "items": [
                {**SETTLEMENT, "outcome": "fail", "retryable": "x"},
                {**SETTLEMENT, "outcome": "snooze"},
                {**SETTLEMENT, "job_id": 1, "outcome": []},
            ]
        },
        {"/items/0/error", "/items/0/retryable", "/items/1/delay_seconds", "/items/2/job_id", "/items/2/outcome"},
    ),
    (
        "POST",
        "/settle",
        {
            "items": [
                {**SETTLEMENT, "outcome": "complete", "result": "\0", "checkpoint": [0] * 10_001},
                {**SETTLEMENT, "outcome": "fail", "error": {"message": "x", "details": "\0"}},
                {**SETTLEMENT, "outcome": "fail"},
            ]
        },
        {"/items/0/result", "/items/0/checkpoint", "/items/1/error/details", "/items/2/error"},
    ),
    (
        "POST",
        "/heartbeat",
        {"worker_id": "w", "leases": [{**SETTLEMENT, "checkpoint": [0] * 10_001}, {**SETTLEMENT, "lease_second": 1}]},
        {"/leases/1/lease_second"},
    ),
    (
        "POST",
        "/heartbeat",
        {"worker_id": "w", "leases": [{**SETTLEMENT, "checkpoint": [0] * 10_001}] * 2},
        {"/leases/0/checkpoint", "/leases/1/checkpoint"},
    ),
    (
        "POST",
        "/jobs/cancel",
        {"ids": ["x"], "filter": {"state": "dead", "queu": 1}, "all": True},
        {"/ids/0", "/filter", "/filter/queu", "/filter/state", "/all"},
    ),
    ("POST", "/jobs/cancel", {"limit": 0, "filter": {}}, {"/limit", "/filter"}),
    ("POST", "/dead-letters/replay", {"limit": 0}, {"/limit", "/filter"}),
    (
        "POST",
        "/dead-letters/replay",
        {"ids": [JOB_ID], "all": True, "spread_seconds": -1, "overrides": {"priority": "x", "queue": ""}},
        {"/all", "/spread_seconds", "/overrides/priority", "/overrides/queue"},
    ),
    ("POST", "/dead-letters/purge", {"ids": [1], "filter": {}, "dry_run": 1}, {"/ids/0", "/filter", "/dry_run"}),
    ("POST", "/queues/q/purge", {"states": ["dead", 1], "dry": 1}, {"/states/0", "/states/1", "/dry"}),
    (
        "PUT",
        "/schedules/all-errors",
        {
            "cron": "x",
            "every_seconds": 0,
            "timezone": "Mars",
            "starts_at": "2030-01-01T00:00:00Z",
            "ends_at": "2029-01-01T00:00:00Z",
            "misfire": "x",
            "job": {"job_type": "a", "run_at": "2030-01-01T00:00:00Z"},
        },
        {"/cron", "/every_seconds", "/timezone", "/ends_at", "/misfire", "/job/run_at"},
    ),
    (
        "PUT",
        "/schedules/all-errors",
        {
            "cron": "x",
            "timezone": "Mars",
            "starts_at": "2200-01-01T00:00:00Z",
            "ends_at": "2029-01-01T00:00:00Z",
            "job": {"job_type": "a", "delay_seconds": FAR},
            "name": "other",
        },
        {"/cron", "/timezone", "/starts_at", "/ends_at", "/job/delay_seconds", "/name"},
    ),
    ("POST", "/schedules/preview", {"timezone": "Mars"}, {"/cron", "/timezone"}),
    ("POST", "/schedules/preview", {"timezone": 1, "cron": "x"}, {"/cron", "/timezone"}),
    (
        "PUT",
        "/queues/all-errors",
        {"lanes": 4, "max_running": 1, "rate": {"limit": 0}, "name": "other"},
        {"/max_running", "/rate", "/rate/limit", "/rate/per_seconds", "/name"},
    ),
    (
        "PUT",
        "/job-types/all-errors",
        {"lease_seconds": 0, "retry": {"jitter": 2}, "name": "other"},
        {"/lease_seconds", "/retry/jitter", "/name"},
    ),
    (
        "PUT",
        "/job-types/all-errors",
        {"payload_schema": {"type": "x"}, "name": "other"},
        {"/payload_schema/type", "/name"},
    ),
    ("POST", "/api-keys", {"scopes": [], "max_leases": 0}, {"/name", "/scopes", "/max_leases"}),
]


def pointers(problem: Json) -> set[str]:
    return {error["pointer"] for error in problem["errors"]}


@table(("method", "path", "body", "expected"), CASES)
def test_all_errors_of_a_body_are_listed(api: Api, method: str, path: str, body: Any, expected: set[str]) -> None:
    response = api.http.request(method, path, json=body)
    assert response.status_code == 422, response.text
    assert pointers(response.json()) == expected


def test_all_errors_of_a_configured_queue_are_listed(api: Api) -> None:
    api.configure(max_running=1)
    api.enqueue()
    api.pause()
    path = f"/queues/{api.queue}"
    problem = api.patch(path, {"lanes": 2, "rate": {"limit": 1, "per_seconds": 1}, "paused": False}, status=422)
    assert pointers(problem) == {"/lanes", "/rate", "/paused"}
    api.put(path, {"lanes": 4})
    body = {"lanes": 2, "max_running": 1, "paused": False, "name": "other"}
    assert pointers(api.put(path, body, status=422)) == {"/lanes", "/max_running", "/paused", "/name"}
    assert pointers(api.patch(path, {**body, "fair": 1}, status=422)) == {"/fair", "/max_running", "/name"}


def test_all_errors_of_a_patched_job_are_listed(api: Api) -> None:
    path = f"/jobs/{api.enqueue()['id']}"
    body = {"payload": [0] * 10_001, "metadata": {"x": "x" * 20_000}, "run_at": "2200-01-01T00:00:00Z", "attempt": 5}
    assert pointers(api.patch(path, body, status=422)) == {"/payload", "/metadata", "/run_at", "/attempt"}
    assert pointers(api.patch(path, {"priority": "x", "id": "y"}, status=422)) == {"/priority", "/id"}
