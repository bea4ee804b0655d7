"""Log lines of a real broker process at debug level: JSON, one per event, forged by nobody, and without a lease token."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.api import Api, Json
from tests.broker import Broker
from tests.cli.command import environment
from tests.conftest import wait_until

FORGED = '\r\n{"event": "forged", "level": "info"}\r\n\x1b[31m'


@contextmanager
def logging_broker(dsn: str, file: Path) -> Iterator[Broker]:
    """A broker whose log goes to a file."""
    given = environment(DATABASE_URL=dsn, LONGSHORE_PORT="0", LONGSHORE_LOG_LEVEL="debug")
    with (
        file.open("wb") as log,
        subprocess.Popen([sys.executable, "-m", "app", "serve"], env=given, stdout=subprocess.PIPE, stderr=log) as process,
    ):
        assert process.stdout is not None
        broker = Broker(process.stdout.readline().decode().split()[3])
        try:
            yield broker
        finally:
            broker.http.close()
            process.terminate()


@pytest.fixture(scope="module")
def logged(dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Path]]:
    file = tmp_path_factory.mktemp("log") / "broker.log"
    with logging_broker(dsn, file) as broker:
        yield broker, file


def lines(file: Path, last: str) -> list[Json]:
    """All lines, once the request of that id has been logged: that happens after its answer."""
    wait_until(lambda: f'"{last}"' in file.read_text())
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_no_name_path_or_header_can_forge_a_line(logged: tuple[Broker, Path]) -> None:
    broker, file = logged
    assert broker.http.get("/livez", headers={b"X-Request-Id": b"forged\x1b[31m"}).status_code == 400
    broker.http.get(f"/jobs/{quote(FORGED)}", headers={"X-Request-Id": "forged\tforged", "traceparent": "forged\tforged"})
    broker.http.post("/jobs", json={"job_type": FORGED})
    broker.http.post("/claim", json={"queues": [FORGED], "worker_id": FORGED})
    job = broker.http.post("/jobs", json={"job_type": "test", "queue": "logs"}).json()
    broker.http.post(f"/jobs/{job['id']}/cancel", json={"reason": FORGED})
    broker.http.get("/jobs", params={"tag": FORGED}, headers={"X-Request-Id": "last-of-forged"})
    written = lines(file, "last-of-forged")
    assert {line["event"] for line in written} >= {"request answered", "job cancelled"}
    assert [line for line in written if line["event"] == "forged"] == []
    assert "\x1b" not in file.read_text()
    assert next(line for line in written if line["event"] == "job cancelled")["reason"] == FORGED
    assert f"/jobs/{FORGED}" in [line.get("path") for line in written]


def test_a_line_says_what_was_asked_and_how_it_ended(logged: tuple[Broker, Path]) -> None:
    broker, file = logged
    broker.http.get("/no/such/path", headers={"X-Request-Id": "find-me"})
    (line,) = [line for line in lines(file, "find-me") if line.get("request_id") == "find-me"]
    assert (line["level"], line["method"], line["path"], line["status"]) == ("debug", "GET", "/no/such/path", 404)
    assert line.keys() >= {"timestamp", "event", "ms"}


def test_no_lease_token_is_ever_logged(logged: tuple[Broker, Path]) -> None:
    broker, file = logged
    api = Api(broker.http, "logged-leases")
    for _ in range(5):
        api.enqueue(payload={"secret": "canary-payload"})
    held = [api.claim_one(worker_id="w1", key=f"key-{number}") for number in range(5)]
    api.heartbeat("w1", *held, holds_all=True)
    api.heartbeat_one(held[0], checkpoint={"x": 1})
    api.complete(held[0])
    api.complete(held[0])
    api.fail(held[0], status=409)
    api.fail(held[1], "canary-message", retryable=False)
    api.snooze(held[2], 60)
    api.release(held[3])
    api.settle({"job_id": held[4]["id"], "lease_token": held[4]["lease_token"], "outcome": "complete"})
    api.post(f"/jobs/{held[4]['id']}/complete", {"lease_token": held[4]["lease_token"], "typo": 1}, status=422)
    broker.http.get("/livez", headers={"X-Request-Id": "last-of-leases"})
    lines(file, "last-of-leases")
    text = file.read_text()
    assert held[0]["id"] in text, "these requests were logged"
    assert [job["lease_token"] for job in held if job["lease_token"] in text] == []
    assert "canary" not in text
