"""Claims whose client disconnects.

Nothing is claimed for a client that disconnected while it waited, and jobs that it had claimed are
returned.
"""

from collections.abc import Callable
from typing import Any

import pytest

from app.broker import Broker
from app.server.exchange import Client
from tests.api.concurrency.test_cost import claim_params
from tests.api.leases.conftest import ClaimStatements
from tests.api_client import Api, Json
from tests.broker import RunningBroker
from tests.database import Loop, TestDatabase
from tests.polls import Background, RawClaim, metric_value, parked_polls, wait_until_read

Eventually = Callable[[Callable[[], Any]], Any]


def test_claim_takes_no_job_for_a_client_that_disconnected_while_waiting(
    quiet: Api,
    quiet_broker: RunningBroker,
    quiet_db: TestDatabase,
    claim_statements: ClaimStatements,
    eventually: Eventually,
) -> None:
    before = metric_value(quiet.http, "claims_parked_left_total")
    params = {
        "queues": [quiet.queue],
        "job_types": ["t"],
        "wait_seconds": 25,
    }  # claims with job types do not share a statement
    polls = [RawClaim(quiet_broker.base, params) for _ in range(40)]
    eventually(lambda: parked_polls(quiet.http) == claim_statements.count() == 40)
    for poll in polls:
        poll.cut()
    eventually(lambda: parked_polls(quiet.http) == 0)
    assert metric_value(quiet.http, "claims_parked_left_total") == before + 40
    assert claim_statements.count() == 40  # disconnecting wakes no poller
    quiet.post("/jobs/batch", {"jobs": [{"queue": quiet.queue, "job_type": "t"}] * 40}, status=201)
    assert quiet_db.value("SELECT count(*) FROM jobs WHERE state = 'ready' AND attempt = 0 AND deliveries = 0") == 40


def test_disconnected_poller_does_not_take_the_job_of_a_connected_one(
    quiet: Api, quiet_broker: RunningBroker, background: Background, eventually: Eventually
) -> None:
    first = RawClaim(quiet_broker.base, {"queues": [quiet.queue], "wait_seconds": 25})
    eventually(lambda: parked_polls(quiet.http) == 1)
    second = background.claim(quiet)
    eventually(lambda: parked_polls(quiet.http) == 2)
    first.cut()
    job = quiet.enqueue()
    claimed = second.result(20)["jobs"]
    assert [(got["id"], got["attempt"]) for got in claimed] == [(job["id"], 1)]


def test_half_closed_client_counts_as_disconnected(
    quiet: Api, quiet_broker: RunningBroker, eventually: Eventually
) -> None:
    poll = RawClaim(quiet_broker.base, {"queues": [quiet.queue], "wait_seconds": 25})
    eventually(lambda: parked_polls(quiet.http) == 1)
    poll.half_close()
    eventually(lambda: parked_polls(quiet.http) == 0)
    assert poll.read_to_end() == b""
    assert quiet.job(quiet.enqueue()["id"])["deliveries"] == 0


def test_lease_whose_client_disconnected_during_the_claim_is_returned_at_no_cost(
    quiet: Api, quiet_broker: RunningBroker, claim_statements: ClaimStatements, eventually: Eventually
) -> None:
    before = metric_value(quiet.http, "claims_undone_total")
    jobs = [quiet.enqueue() for _ in range(3)]
    with claim_statements.held():
        claim = RawClaim(quiet_broker.base, {"queues": [quiet.queue], "max_jobs": 3})
        eventually(lambda: claim_statements.running() == 1)
        claim.cut()
        wait_until_read(quiet.http)
    eventually(lambda: metric_value(quiet.http, "claims_undone_total") == before + 3)
    for job in jobs:
        after = quiet.job(job["id"])
        assert (after["state"], after["attempt"], after["crashes"], after["deliveries"]) == ("ready", 0, 0, 1)
    assert [job["attempt"] for job in quiet.claim(max_jobs=3)["jobs"]] == [1, 1, 1]


def test_returned_lease_wakes_a_poller(
    quiet: Api,
    quiet_broker: RunningBroker,
    background: Background,
    claim_statements: ClaimStatements,
    eventually: Eventually,
) -> None:
    job = quiet.enqueue()
    with claim_statements.held():
        claim = RawClaim(quiet_broker.base, {"queues": [quiet.queue]})
        eventually(lambda: claim_statements.running() == 1)
        poll = background.claim(quiet)
        eventually(lambda: parked_polls(quiet.http) == 2)
        claim.cut()
        wait_until_read(quiet.http)
    assert poll.result(20)["jobs"][0]["id"] == job["id"]


@pytest.mark.parametrize("deliveries", [0, 1])
def test_claim_with_a_key_is_never_returned(
    quiet: Api, quiet_broker: RunningBroker, claim_statements: ClaimStatements, eventually: Eventually, deliveries: int
) -> None:
    before = metric_value(quiet.http, "claims_undone_total")
    job = quiet.enqueue()
    for _ in range(deliveries):
        quiet.release(quiet.claim_one())
    with claim_statements.held():
        claim = RawClaim(quiet_broker.base, {"queues": [quiet.queue]}, key=f"kept-{deliveries}")
        eventually(lambda: claim_statements.running() == 1)
        claim.cut()
        wait_until_read(quiet.http)
    eventually(lambda: quiet.job(job["id"])["state"] == "running")
    again = quiet.claim_one(key=f"kept-{deliveries}")
    assert (again["id"], again["attempt"], again["deliveries"]) == (job["id"], 1, deliveries + 1)
    assert metric_value(quiet.http, "claims_undone_total") == before
    assert quiet.complete(again)["status"] == "settled"


def test_settlements_of_a_claim_are_kept_though_its_client_disconnected(
    quiet: Api, quiet_broker: RunningBroker, claim_statements: ClaimStatements, eventually: Eventually
) -> None:
    quiet.enqueue()
    held = quiet.claim_one()
    done = {"job_id": held["id"], "lease_token": held["lease_token"], "outcome": "complete"}
    with claim_statements.held():
        claim = RawClaim(quiet_broker.base, {"queues": [quiet.queue], "settle": [done]})
        eventually(lambda: claim_statements.running() == 1)
        claim.cut()
    assert quiet.job(held["id"])["state"] == "completed"


async def disconnected_client() -> Client:
    client = Client()
    client.disconnect()
    return client


@pytest.mark.parametrize("config", [{}, {"max_running": 5}], ids=["unlimited", "limited"])
def test_claim_that_shares_no_statement_takes_no_job_for_a_disconnected_client(
    broker_services: Broker, api: Api, loop: Loop, config: Json
) -> None:
    api.configure(**config)
    job = api.enqueue()
    params = claim_params()._replace(job_types=["test"], client=loop.run(disconnected_client()))
    queues = loop.run(broker_services.queues.find_all([api.queue]))
    assert loop.run(broker_services.claims.claim(queues, 1, params)).rows == []
    assert api.job(job["id"])["deliveries"] == 0
    assert len(loop.run(broker_services.claims.claim(queues, 1, params._replace(client=None))).rows) == 1
