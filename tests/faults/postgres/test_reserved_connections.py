"""Reserved connections: claims that block all other connections cannot keep workers from settling
their jobs. See docs/reliability/faults.md#b7.
"""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.api.leases.conftest import WATCH_CLAIMS, ClaimStatements
from tests.api_client import Api, Json
from tests.broker import threaded_broker
from tests.database import Loop, TestDatabase, create_database
from tests.faults.db.test_write_outcome import outcome
from tests.faults.postgres.conftest import settings_with
from tests.polls import Background

Eventually = Callable[[Callable[[], Any]], Any]

POOL = 3


@pytest.fixture(scope="module")
def database(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, "bulkhead"), loop)
    database.execute(WATCH_CLAIMS)
    yield database
    database.close()


def call_while_claims_block(
    database: TestDatabase, background: Background, eventually: Eventually, queue: str, reserved: int
) -> list[httpx.Response]:
    """The responses to a claim, a heartbeat and a settlement while claims use every connection that
    they may use.
    """
    settings = settings_with(pool_size=POOL, pool_reserved=reserved, acquire_timeout_seconds=1.0, notify=False)
    claims = ClaimStatements(database)
    with threaded_broker(settings, database.dsn) as broker:
        api = Api(broker.http, queue)
        api.enqueue_many(20)
        claimed = api.claim_one(worker_id="w")
        with claims.held():
            eventually(lambda: submit_claim(background, api, claims) == POOL - reserved)
            return [claim(api), heartbeat(api, claimed), settle(api, claimed)]


def submit_claim(background: Background, api: Api, claims: ClaimStatements) -> int:
    background.submit(claim, api)
    return claims.running()


def claim(api: Api) -> httpx.Response:
    """Claims by type, because such a claim shares no statement with others."""
    return api.http.post("/claim", json={"queues": [api.queue], "job_types": ["test"]})


def heartbeat(api: Api, claimed: Json) -> httpx.Response:
    lease = {"job_id": claimed["id"], "lease_token": claimed["lease_token"]}
    return api.http.post("/heartbeat", json={"worker_id": "w", "leases": [lease]})


def settle(api: Api, claimed: Json) -> httpx.Response:
    return api.http.post(f"/jobs/{claimed['id']}/complete", json={"lease_token": claimed["lease_token"]})


def test_claims_cannot_starve_heartbeats_and_settlements(
    database: TestDatabase, background: Background, eventually: Eventually, queue: str
) -> None:
    claim_response, heartbeat_response, settle_response = call_while_claims_block(
        database, background, eventually, queue, reserved=1
    )
    assert outcome(claim_response) == "not_done"
    assert heartbeat_response.json()["leases"][0]["status"] == "extended"
    assert settle_response.json()["status"] == "settled"


def test_claims_starve_heartbeats_and_settlements_without_reserved_connections(
    database: TestDatabase, background: Background, eventually: Eventually, queue: str
) -> None:
    """The control: the test above can fail."""
    responses = call_while_claims_block(database, background, eventually, queue, reserved=0)
    assert [outcome(response) for response in responses] == ["not_done"] * 3
