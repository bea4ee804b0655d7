"""Secrets appear only in the response that returns them: not in logs, metrics or errors.

See docs/reliability/faults.md#e11 and docs/reliability/faults.md#e17.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.api.api_keys.conftest import Callers
from tests.api_client import Api
from tests.broker import RunningBroker
from tests.contract.document import operations
from tests.contract.test_logs import lines, logging_broker
from tests.contract.test_unexpected_input import example_path
from tests.database import TestDatabase

pytestmark = pytest.mark.slow

PAYLOAD = "canary-of-the-payload"
UNKNOWN_KEY = f"lsk_{'c' * 16}_{'a' * 64}"


class BrokerOutput(NamedTuple):
    """The log, metrics and error responses of a broker, and the number of calls."""

    log: str
    metrics: str
    errors: str
    calls: int


@pytest.fixture(scope="module")
def logged(
    keyed_broker: tuple[RunningBroker, str], key_database: TestDatabase, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningBroker, Path]]:
    """A broker process that logs to a file, at debug level."""
    file = tmp_path_factory.mktemp("log") / "broker.log"
    with logging_broker(key_database.dsn, file) as broker:
        yield broker, file


def attempts(http: httpx.Client, token: str) -> Iterator[httpx.Response]:
    """Calls every operation, valid and invalid: without a key, with an unknown key, with a
    truncated body, with unknown fields.
    """
    body = {"lease_token": token, "payload": PAYLOAD, "job_id": token, "worker_id": "w"}
    for operation in operations():
        path = example_path(operation)
        yield http.request(operation.method, path, json=body, headers={"Authorization": ""})
        yield http.request(operation.method, path, json=body, headers={"Authorization": f"Bearer {UNKNOWN_KEY}"})
        yield http.request(operation.method, path, content=f'{{"payload": "{PAYLOAD}", "lease_token": "{token}"')
        yield http.request(operation.method, path, json=body)
        yield http.request(operation.method, path)


def life_of_a_lease(api: Api) -> tuple[str, list[httpx.Response]]:
    """Claims and completes a job.

    Returns its lease token, and the responses to late or invalid calls.
    """
    api.enqueue(payload={"secret": PAYLOAD}, key="canary")
    job = api.claim_one(key="canary", worker_id="w")
    token: str = job["lease_token"]
    api.heartbeat("w", job, holds_all=True)
    late = {"lease_token": token, "error": {"message": "late"}}
    assert api.http.post(f"/jobs/{job['id']}/complete", json={"lease_token": token, "typo": 1}).status_code == 422
    api.complete(job)
    return token, [
        api.http.post(f"/jobs/{job['id']}/fail", json=late),
        api.http.post("/jobs", json={"payload": PAYLOAD}),
    ]


def test_logs_metrics_and_errors_contain_no_secret(
    logged: tuple[RunningBroker, Path], callers: Callers, eventually: Callable[..., Any]
) -> None:
    broker, file = logged
    key = callers.key()
    broker.http.headers["Authorization"] = f"Bearer {key.text}"
    eventually(lambda: broker.http.get("/jobs").status_code == 200)  # the broker has loaded the key
    token, responses = life_of_a_lease(Api(broker.http, callers.admin.queue))
    responses += attempts(broker.http, token)
    metrics = broker.http.get("/metrics").text
    broker.http.get("/livez", headers={"X-Request-Id": "last-of-canaries"})
    assert lines(file, "last-of-canaries")[-1]["path"] == "/livez"
    output = BrokerOutput(
        file.read_text(),
        metrics,
        "\n".join(response.text for response in responses if response.status_code >= 400),
        len(responses),
    )
    assert output.calls > 250
    assert output.log.count("\n") >= output.calls, "these calls were logged"
    secrets = {"key": key.text.rpartition("_")[2], "unknown key": "a" * 64, "token": token, "payload": PAYLOAD}
    for channel in ("log", "metrics", "errors"):
        assert [name for name, secret in secrets.items() if secret in getattr(output, channel)] == [], channel
