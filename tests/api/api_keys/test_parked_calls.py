"""A waiting call reads and claims nothing once its key has been revoked."""

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from app.db import config_versions
from tests.api.api_keys.conftest import Callers
from tests.api_client import Api, Json
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import TestDatabase
from tests.polls import Background


@pytest.mark.parametrize("carries_settlement", [False, True])
def test_parked_claim_of_a_revoked_key_gets_no_job(
    callers: Callers,
    keyed_broker: tuple[RunningBroker, str],
    background: Background,
    eventually: Callable[..., Any],
    queue: str,
    carries_settlement: bool,
) -> None:
    """The result of a settlement that was committed before is returned: a rejected request has changed
    nothing."""
    key = callers.key("work")
    claim: Json = {"queues": [queue], "wait_seconds": 25}
    if carries_settlement:
        callers.admin.enqueue()
        held = callers.admin.claim_one()
        settlement = {"job_id": held["id"], "lease_token": held["lease_token"], "outcome": "complete"}
        claim |= {"settle": [settlement], "wait_after_settle": True}
    poll = background.submit(key.api.http.post, "/claim", json=claim)
    broker_services = keyed_broker[0].broker_services
    assert broker_services is not None
    eventually(lambda: broker_services.pollers.count(queue) == 1)
    callers.revoke(key)
    job = callers.admin.enqueue()
    response = poll.result(30)
    assert response.status_code == (200 if carries_settlement else 401)
    if carries_settlement:
        answer = response.json()
        assert ([result["status"] for result in answer["settled"]], answer["jobs"]) == (["settled"], [])
    assert callers.admin.job(job["id"])["state"] == "ready"


def test_parked_claim_of_a_revoked_key_gets_no_job_on_an_idle_broker_without_notifications(
    callers: Callers,
    key_database: TestDatabase,
    background: Background,
    eventually: Callable[..., Any],
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker receives no NOTIFY and does not check the configuration versions on its own."""
    key = callers.key("work")
    with threaded_broker(TEST_SETTINGS.model_copy(update={"notify": False}), key_database.dsn) as unnotified:
        claim = {"queues": [queue], "wait_seconds": 25}
        poll = background.submit(
            httpx.post,
            f"{unnotified.base}/claim",
            json=claim,
            headers={"Authorization": f"Bearer {key.text}"},
            timeout=60,
        )
        assert unnotified.broker_services is not None
        pollers = unnotified.broker_services.pollers
        eventually(lambda: pollers.count(queue) == 1)
        monkeypatch.setattr(config_versions, "AWAKE_SECONDS", -1.0)
        monkeypatch.setattr(config_versions, "IDLE_CHECK_SECONDS", 3600.0)
        callers.revoke(key)
        time.sleep(2 * config_versions.FRESH_SECONDS)  # documented bound
        job = callers.admin.enqueue()
        assert poll.result(30).status_code == 401
        assert callers.admin.job(job["id"])["state"] == "ready"


def test_wait_for_a_job_with_a_revoked_key_is_unauthorized(
    callers: Callers, background: Background, admin: Api
) -> None:
    key, job = callers.key("read"), admin.enqueue()
    response = background.submit(key.api.http.get, f"/jobs/{job['id']}", params={"wait_seconds": 25})
    lease = admin.claim_one()
    callers.revoke(key)
    admin.complete(lease)
    assert response.result(30).status_code == 401


def test_request_with_two_authorization_headers_is_rejected(
    callers: Callers, keyed_broker: tuple[RunningBroker, str]
) -> None:
    """A proxy may have checked the other key."""
    keys = [callers.key().text, "lsk_0123456789abcdef_" + "0" * 64]
    for keys_sent in (keys, keys[::-1]):
        headers = [("Authorization", f"Bearer {key}") for key in keys_sent]
        assert httpx.get(f"{keyed_broker[0].base}/jobs", headers=headers).status_code == 400
