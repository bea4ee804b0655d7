"""A call that waits is not told anything any more once its key has ended."""

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from app.db import config_versions
from tests.api import Api
from tests.api_keys.conftest import Callers
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import QUICK
from tests.database import TestDatabase
from tests.polls import Background


def test_a_parked_claim_gets_nothing_when_its_key_was_revoked(
    callers: Callers,
    guarded: tuple[RunningBroker, str],
    background: Background,
    eventually: Callable[..., Any],
    queue: str,
) -> None:
    key = callers.key("work")
    poll = background.submit(key.api.http.post, "/claim", json={"queues": [queue], "wait_seconds": 25})
    broker_services = guarded[0].broker_services
    assert broker_services is not None
    eventually(lambda: broker_services.waiting.waiting(queue) == 1)
    callers.revoke(key)
    job = callers.admin.enqueue()
    assert poll.result(30).status_code == 401
    assert callers.admin.job(job["id"])["state"] == "ready"


def test_nor_where_nobody_has_called_for_a_while_and_no_word_comes(
    callers: Callers,
    guarded_database: TestDatabase,
    background: Background,
    eventually: Callable[..., Any],
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that hears no NOTIFY, and does not look by itself."""
    key = callers.key("work")
    with threaded_broker(QUICK.model_copy(update={"notify": False}), guarded_database.dsn) as deaf:
        claim = {"queues": [queue], "wait_seconds": 25}
        poll = background.submit(
            httpx.post, f"{deaf.base}/claim", json=claim, headers={"Authorization": f"Bearer {key.text}"}, timeout=60
        )
        assert deaf.broker_services is not None
        waiting = deaf.broker_services.waiting
        eventually(lambda: waiting.waiting(queue) == 1)
        monkeypatch.setattr(config_versions, "AWAKE_SECONDS", -1.0)
        monkeypatch.setattr(config_versions, "IDLE_CHECK_SECONDS", 3600.0)
        callers.revoke(key)
        time.sleep(2 * config_versions.FRESH_SECONDS)  # that is what is promised
        job = callers.admin.enqueue()
        assert poll.result(30).status_code == 401
        assert callers.admin.job(job["id"])["state"] == "ready"


def test_who_waits_for_a_job_hears_nothing_of_it_when_its_key_was_revoked(
    callers: Callers, background: Background, admin: Api
) -> None:
    key, job = callers.key("read"), admin.enqueue()
    answer = background.submit(key.api.http.get, f"/jobs/{job['id']}", params={"wait_seconds": 25})
    held = admin.claim_one()
    callers.revoke(key)
    admin.complete(held)
    assert answer.result(30).status_code == 401


def test_two_keys_in_one_call_are_none(callers: Callers, guarded: tuple[RunningBroker, str]) -> None:
    keys = [callers.key().text, "lsk_0123456789abcdef_" + "0" * 64]
    for sent in (keys, keys[::-1]):
        headers = [("Authorization", f"Bearer {key}") for key in sent]
        assert httpx.get(f"{guarded[0].base}/jobs", headers=headers).status_code == 401
