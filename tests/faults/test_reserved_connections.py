"""Connections in reserve: claims that hold up all the others cannot keep workers from settling what they hold (B7)."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.api import Api, Json
from tests.broker import threaded_broker
from tests.database import Loop, TestDatabase, create_database
from tests.db.test_write_outcome import outcome
from tests.faults.conftest import settings_with
from tests.leases.conftest import WATCH, ClaimStatements
from tests.polls import Background

Eventually = Callable[[Callable[[], Any]], Any]

POOL = 3


@pytest.fixture(scope="module")
def watched(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, "bulkhead"), loop)
    database.execute(WATCH)
    yield database
    database.close()


def starved(
    watched: TestDatabase, background: Background, eventually: Eventually, queue: str, reserved: int
) -> list[httpx.Response]:
    """What a claim, a heartbeat and a settlement hear while claims have every connection that they may have."""
    settings = settings_with(pool_size=POOL, pool_reserved=reserved, acquire_timeout_seconds=1.0, notify=False)
    claims = ClaimStatements(watched)
    with threaded_broker(settings, watched.dsn) as broker:
        api = Api(broker.http, queue)
        api.enqueue_many(20)
        held = api.claim_one(worker_id="w")
        with claims.held():
            eventually(lambda: one_more(background, api, claims) == POOL - reserved)
            return [claim(api), heartbeat(api, held), settle(api, held)]


def one_more(background: Background, api: Api, claims: ClaimStatements) -> int:
    background.submit(claim, api)
    return claims.running()


def claim(api: Api) -> httpx.Response:
    """Who asks for a type shares no statement with others."""
    return api.http.post("/claim", json={"queues": [api.queue], "job_types": ["test"]})


def heartbeat(api: Api, held: Json) -> httpx.Response:
    lease = {"job_id": held["id"], "lease_token": held["lease_token"]}
    return api.http.post("/heartbeat", json={"worker_id": "w", "leases": [lease]})


def settle(api: Api, held: Json) -> httpx.Response:
    return api.http.post(f"/jobs/{held['id']}/complete", json={"lease_token": held["lease_token"]})


def test_claims_cannot_starve_heartbeats_and_settlements(
    watched: TestDatabase, background: Background, eventually: Eventually, queue: str
) -> None:
    claimed, beaten, settled = starved(watched, background, eventually, queue, reserved=1)
    assert outcome(claimed) == "not_done"
    assert beaten.json()["leases"][0]["status"] == "extended"
    assert settled.json()["status"] == "settled"


def test_claims_starve_heartbeats_and_settlements_without_reserved_connections(
    watched: TestDatabase, background: Background, eventually: Eventually, queue: str
) -> None:
    """The control."""
    answers = starved(watched, background, eventually, queue, reserved=0)
    assert [outcome(answer) for answer in answers] == ["not_done"] * 3
