"""Servers that must get no writes: a superseded primary that does not know that it was replaced,
and a standby.
"""

from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import pytest

from app.db.primary import PrimaryConnector
from tests.api_client import Api
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.faults.failover.cluster import Pair

Eventually = Callable[[Callable[[], Any]], Any]

IDS = "SELECT id::text FROM jobs"
END_SESSIONS = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'longshore%'"


@pytest.fixture
def broker(asynchronous: Pair) -> Iterator[RunningBroker]:
    with threaded_broker(TEST_SETTINGS, asynchronous.dsn) as broker:
        yield broker


@pytest.fixture
def api(broker: RunningBroker) -> Api:
    return Api(broker.http, "orders")


def replace_primary(pair: Pair, api: Api, eventually: Eventually) -> None:
    """Promotes the standby and waits until the broker uses it.

    Then starts the superseded primary again, which is first in the list of hosts.
    """
    api.enqueue()
    pair.wait_for_replay()
    pair.fail_over()
    eventually(lambda: api.http.get("/readyz").status_code == 200)
    api.enqueue()
    pair.primary.start()


def enqueue_acknowledged(api: Api, count: int) -> set[str]:
    """Enqueues with idempotency keys, and repeats each call until it succeeds. Returns the ids."""
    ids: set[str] = set()
    while len(ids) < count:
        response = api.http.post(
            "/jobs", json={"queue": api.queue, "job_type": "test"}, headers={"Idempotency-Key": f"k{len(ids)}"}
        )
        ids |= {response.json()["id"]} if response.status_code == 201 else set()
    return ids


def test_superseded_primary_that_comes_back_gets_no_writes(
    asynchronous: Pair, api: Api, eventually: Eventually
) -> None:
    replace_primary(asynchronous, api, eventually)
    assert asynchronous.on_standby.value(END_SESSIONS) > 0
    ids = enqueue_acknowledged(api, 20)
    assert ids <= {row["id"] for row in asynchronous.on_standby.rows(IDS)}
    assert len(asynchronous.on_primary.rows(IDS)) == 1


def test_superseded_primary_acknowledges_writes_without_the_timeline_check(
    asynchronous: Pair, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the driver uses the first host that accepts writes."""

    async def connect(
        connector: PrimaryConnector, _dsn: str | None = None, **options: Any
    ) -> "asyncpg.Connection[asyncpg.Record]":
        return await asyncpg.connect(connector.dsn, **options)

    monkeypatch.setattr(PrimaryConnector, "connect", connect)
    with threaded_broker(TEST_SETTINGS, asynchronous.dsn) as unchecked:
        api = Api(unchecked.http, "orders")
        replace_primary(asynchronous, api, eventually)
        assert asynchronous.on_standby.value(END_SESSIONS) > 0
        assert enqueue_acknowledged(api, 20) <= {row["id"] for row in asynchronous.on_primary.rows(IDS)}


def test_new_broker_finds_the_current_one_of_two_primaries(
    asynchronous: Pair, api: Api, eventually: Eventually
) -> None:
    replace_primary(asynchronous, api, eventually)
    with threaded_broker(TEST_SETTINGS, asynchronous.dsn) as another:
        ids = enqueue_acknowledged(Api(another.http, "orders"), 5)
    assert ids <= {row["id"] for row in asynchronous.on_standby.rows(IDS)}


def test_superseded_primary_is_refused_even_if_it_is_the_only_server(
    asynchronous: Pair, api: Api, eventually: Eventually
) -> None:
    replace_primary(asynchronous, api, eventually)
    asynchronous.standby.kill()
    eventually(lambda: api.http.get("/readyz").status_code == 503)
    problem = api.post("/jobs", {"queue": "orders", "job_type": "test"}, status=503)
    assert (problem["outcome"], len(asynchronous.on_primary.rows(IDS))) == ("not_done", 1)
    asynchronous.standby.start()
    eventually(lambda: api.http.get("/readyz").status_code == 200)
    assert api.enqueue()["state"] == "ready"


def test_standby_gets_no_writes_until_it_is_promoted(asynchronous: Pair, eventually: Eventually) -> None:
    with threaded_broker(TEST_SETTINGS, asynchronous.standby.dsn) as broker:
        api = Api(broker.http, "orders")
        assert api.post("/jobs", {"queue": "orders", "job_type": "test"}, status=503)["outcome"] == "not_done"
        ready = api.get("/readyz", status=503)
        assert any("standby" in check["detail"] for check in ready["checks"] if not check["ok"])
        asynchronous.fail_over()
        eventually(lambda: api.http.post("/jobs", json={"queue": "orders", "job_type": "test"}).status_code == 201)
