"""Log lines of a broker process at debug level.

They are JSON, one line per event, cannot be forged, and contain no lease token.
"""

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.api_client import Api, Json
from tests.broker import RunningBroker, broker_process
from tests.conftest import wait_until
from tests.database import Loop, TestDatabase, create_database
from tests.http.raw_connection import RawConnection

pytestmark = pytest.mark.slow

FORGED = '\r\n{"event": "forged", "level": "info"}\r\n\x1b[31m'


@contextmanager
def logging_broker(dsn: str, file: Path) -> Iterator[RunningBroker]:
    """A broker that logs to a file."""
    with broker_process(dsn, "sh", "-c", f'exec "$@" 2> {shlex.quote(str(file))}', "sh", log_level="debug") as (
        broker,
        _,
    ):
        yield broker


@pytest.fixture(scope="module")
def broker_and_log(dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningBroker, Path]]:
    file = tmp_path_factory.mktemp("log") / "broker.log"
    with logging_broker(dsn, file) as broker:
        yield broker, file


def lines(file: Path, last: str) -> list[Json]:
    """Returns all lines, once the request with that id appears. It is logged after its response."""
    wait_until(lambda: f'"{last}"' in file.read_text())
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_no_name_path_or_header_can_forge_a_log_line(broker_and_log: tuple[RunningBroker, Path]) -> None:
    broker, file = broker_and_log
    assert broker.http.get("/livez", headers={b"X-Request-Id": b"forged\x1b[31m"}).status_code == 400
    broker.http.get(
        f"/jobs/{quote(FORGED)}", headers={"X-Request-Id": "forged\tforged", "traceparent": "forged\tforged"}
    )
    broker.http.post("/jobs", json={"job_type": FORGED})
    broker.http.post("/claim", json={"queues": [FORGED], "worker_id": FORGED})
    job = broker.http.post("/jobs", json={"job_type": "test", "queue": "logs"}).json()
    broker.http.post(f"/jobs/{job['id']}/cancel", json={"reason": FORGED})
    broker.http.get("/jobs", params={"tag": FORGED}, headers={"X-Request-Id": "last-of-forged"})
    log_lines = lines(file, "last-of-forged")
    assert {line["event"] for line in log_lines} >= {"request answered", "job cancelled"}
    assert [line for line in log_lines if line["event"] == "forged"] == []
    assert "\x1b" not in file.read_text()
    assert next(line for line in log_lines if line["event"] == "job cancelled")["reason"] == FORGED
    assert f"/jobs/{FORGED}" in [line.get("path") for line in log_lines]


def test_log_line_has_method_path_and_status_of_the_request(broker_and_log: tuple[RunningBroker, Path]) -> None:
    broker, file = broker_and_log
    broker.http.get("/no/such/path", headers={"X-Request-Id": "find-me"})
    (line,) = [line for line in lines(file, "find-me") if line.get("request_id") == "find-me"]
    assert (line["level"], line["method"], line["path"], line["status"]) == ("debug", "GET", "/no/such/path", 404)
    assert line.keys() >= {"timestamp", "event", "ms"}


def test_no_lease_token_is_ever_logged(broker_and_log: tuple[RunningBroker, Path]) -> None:
    broker, file = broker_and_log
    api = Api(broker.http, "logged-leases")
    for _ in range(5):
        api.enqueue(payload={"secret": "canary-payload"})
    jobs = [api.claim_one(worker_id="w1", key=f"key-{number}") for number in range(5)]
    api.heartbeat("w1", *jobs, holds_all=True)
    api.heartbeat_one(jobs[0], checkpoint={"x": 1})
    api.complete(jobs[0])
    api.complete(jobs[0])
    api.fail(jobs[0], status=409)
    api.fail(jobs[1], "canary-message", retryable=False)
    api.snooze(jobs[2], 60)
    api.release(jobs[3])
    api.settle({"job_id": jobs[4]["id"], "lease_token": jobs[4]["lease_token"], "outcome": "complete"})
    api.post(f"/jobs/{jobs[4]['id']}/complete", {"lease_token": jobs[4]["lease_token"], "typo": 1}, status=422)
    broker.http.get("/livez", headers={"X-Request-Id": "last-of-leases"})
    lines(file, "last-of-leases")
    text = file.read_text()
    assert jobs[0]["id"] in text, "these requests were logged"
    assert [job["lease_token"] for job in jobs if job["lease_token"] in text] == []
    assert "canary" not in text


def test_connect_writes_no_error(broker_and_log: tuple[RunningBroker, Path]) -> None:
    broker, file = broker_and_log
    connection = RawConnection(broker.base)
    connection.send(b"CONNECT /x HTTP/1.1\r\nHost: test\r\n\r\n")
    assert connection.error_response().status == 400
    connection.close()
    broker.http.get("/livez", headers={"X-Request-Id": "after-connect"})
    assert [line for line in lines(file, "after-connect") if line["level"] == "error"] == []


def test_every_change_by_an_operator_is_a_log_line_with_its_caller(postgres: str, loop: Loop, tmp_path: Path) -> None:
    database = TestDatabase(create_database(postgres, loop, "operator_logs"), loop)
    file = tmp_path / "broker.log"
    with logging_broker(database.dsn, file) as broker:
        operator = broker.http.post("/api-keys", json={"name": "operator", "scopes": ["admin"]}).json()
        broker.http.headers["Authorization"] = f"Bearer {operator['key']}"
        api = Api(broker.http, "other")
        dead, waiting, running = api.dead_letter(), api.enqueue(priority=-1), api.enqueue()
        api.claim_one(worker_id="w1")
        key = api.post("/api-keys", {"name": "mailer", "scopes": ["read"]}, status=201)
        schedule = {"every_seconds": 3600, "job": {"job_type": "test", "queue": "other"}}
        bulk: Json = {"filter": {"queue": "other"}, "dry_run": False}
        calls: list[tuple[str, str, Json | None, str]] = [
            ("PUT", "/queues/other", {}, "queue configured"),
            ("PATCH", "/queues/other", {}, "queue configured"),
            ("POST", "/queues/other/pause", {"reason": "deploy"}, "queue paused"),
            ("POST", "/queues/other/resume", None, "queue resumed"),
            ("PUT", "/job-types/mail", {}, "job type configured"),
            ("DELETE", "/job-types/mail", None, "job type deleted"),
            ("PUT", "/schedules/hourly", schedule, "schedule configured"),
            ("POST", "/schedules/hourly/run", None, "schedule run on request"),
            ("POST", "/schedules/hourly/pause", None, "schedule paused"),
            ("POST", "/schedules/hourly/resume", None, "schedule resumed"),
            ("DELETE", "/schedules/hourly", None, "schedule deleted"),
            ("POST", "/workers/w1/drain", None, "worker directive set"),
            ("POST", f"/jobs/{waiting['id']}/cancel", None, "job cancelled"),
            ("POST", f"/jobs/{running['id']}/cancel", None, "job cancellation requested"),
            ("POST", f"/dead-letters/{dead['id']}/replay", None, "dead letter replayed"),
            ("POST", "/dead-letters/replay", bulk, "dead letters replayed"),
            ("POST", "/dead-letters/purge", bulk, "dead letters purged"),
            ("POST", "/jobs/cancel", bulk, "jobs cancelled"),
            ("POST", "/queues/other/purge", {"dry_run": False}, "queue purged"),
            ("PUT", "/queues/empty", {}, "queue configured"),
            ("DELETE", "/queues/empty", None, "queue deleted"),
            ("DELETE", f"/api-keys/{key['id']}", None, "api key revoked"),
            ("DELETE", f"/api-keys/{key['id']}", None, ""),  # revoked already
        ]
        for method, path, body, _ in calls:
            assert broker.http.request(method, path, json=body).is_success, path
    log_lines = [json.loads(line) for line in file.read_text().splitlines()]
    logged = [(line["event"], line["caller"]) for line in log_lines if "caller" in line]
    expected = [("api key created", ""), ("api key created", "operator")]
    assert logged == [*expected, *[(event, "operator") for *_, event in calls if event]]
    database.close()


def test_missed_start_deadlines_log_the_queue(postgres: str, loop: Loop, tmp_path: Path) -> None:
    database = TestDatabase(create_database(postgres, loop, "late_logs"), loop)
    file = tmp_path / "broker.log"
    with logging_broker(database.dsn, file) as broker:
        soon = {"queue": "late", "job_type": "test", "expires_at": database.instant(1)}
        assert broker.http.post("/jobs", json=soon).status_code == 201
        wait_until(lambda: "jobs missed their start deadline" in file.read_text())
    log_lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["queue"] for line in log_lines if line["event"] == "jobs missed their start deadline"] == ["late"]
    database.close()
