"""Secrets show up nowhere but in the answer that tells them: not in logs, not in metrics, not in errors (FAULTS E11, E17)."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.api import Api
from tests.api_keys.conftest import Callers
from tests.broker import RunningBroker
from tests.contract.document import operations
from tests.contract.test_logs import lines, logging_broker
from tests.contract.test_nothing_more import path_of
from tests.database import TestDatabase

PAYLOAD = "canary-of-the-payload"
WRONG = f"lsk_{'c' * 16}_{'a' * 64}"


class Told(NamedTuple):
    """All that a broker has said to others than the holder of the secrets; and the errors that it answered with."""

    log: str
    metrics: str
    errors: str
    calls: int


@pytest.fixture(scope="module")
def logged(
    guarded: tuple[RunningBroker, str], guarded_database: TestDatabase, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningBroker, Path]]:
    """A process whose log, at debug level, goes to a file."""
    file = tmp_path_factory.mktemp("log") / "broker.log"
    with logging_broker(guarded_database.dsn, file) as broker:
        yield broker, file


def attempts(http: httpx.Client, token: str) -> Iterator[httpx.Response]:
    """Every operation, well and badly: as nobody, as somebody unknown, with a body that is cut off, and with one field too many."""
    body = {"lease_token": token, "payload": PAYLOAD, "job_id": token, "worker_id": "w"}
    for operation in operations():
        path = path_of(operation)
        yield http.request(operation.method, path, json=body, headers={"Authorization": ""})
        yield http.request(operation.method, path, json=body, headers={"Authorization": f"Bearer {WRONG}"})
        yield http.request(operation.method, path, content=f'{{"payload": "{PAYLOAD}", "lease_token": "{token}"')
        yield http.request(operation.method, path, json=body)
        yield http.request(operation.method, path)


def life_of_a_lease(api: Api) -> tuple[str, list[httpx.Response]]:
    """Its token; and the answers to those who spoke too late."""
    api.enqueue(payload={"secret": PAYLOAD}, key="canary")
    held = api.claim_one(key="canary", worker_id="w")
    token: str = held["lease_token"]
    api.heartbeat("w", held, holds_all=True)
    late = {"lease_token": token, "error": {"message": "late"}}
    assert api.http.post(f"/jobs/{held['id']}/complete", json={"lease_token": token, "typo": 1}).status_code == 422
    api.complete(held)
    return token, [
        api.http.post(f"/jobs/{held['id']}/fail", json=late),
        api.http.post("/jobs", json={"payload": PAYLOAD}),
    ]


def test_no_secret_shows_up_anywhere_else(
    logged: tuple[RunningBroker, Path], callers: Callers, eventually: Callable[..., Any]
) -> None:
    broker, file = logged
    key = callers.key()
    broker.http.headers["Authorization"] = f"Bearer {key.text}"
    eventually(lambda: broker.http.get("/jobs").status_code == 200)  # it has heard of the key
    token, answers = life_of_a_lease(Api(broker.http, callers.admin.queue))
    answers += attempts(broker.http, token)
    metrics = broker.http.get("/metrics").text
    broker.http.get("/livez", headers={"X-Request-Id": "last-of-canaries"})
    assert lines(file, "last-of-canaries")[-1]["path"] == "/livez"
    told = Told(
        file.read_text(),
        metrics,
        "\n".join(answer.text for answer in answers if answer.status_code >= 400),
        len(answers),
    )
    assert told.calls > 250
    assert told.log.count("\n") >= told.calls, "these calls were logged"
    secrets = {"key": key.text.rpartition("_")[2], "unknown key": "a" * 64, "token": token, "payload": PAYLOAD}
    for place in ("log", "metrics", "errors"):
        assert [name for name, secret in secrets.items() if secret in getattr(told, place)] == [], place
