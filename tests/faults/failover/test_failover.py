"""The link to the standby breaks, then the primary is lost: compares what was acknowledged with
what survives.
"""

from collections.abc import Callable
from typing import Any

from tests.api_client import Api
from tests.broker import broker_process, threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import TestDatabase
from tests.faults.failover.cluster import Pair
from tests.faults.failover.load import Load, run_load
from tests.polls import Background

Eventually = Callable[[Callable[[], Any]], Any]


def fail_over_under_load(
    pair: Pair, background: Background, after_break: Callable[[Load], object]
) -> tuple[Load, TestDatabase]:
    """`after_break` returns when enough has happened between the break of the link and the loss of
    the primary.
    """
    with broker_process(pair.dsn, log_level="error") as (broker, _), run_load(broker.base, background) as clients:
        clients.wait_for_more(200, 50)
        pair.break_link()
        after_break(clients)
        survivor = pair.fail_over()
        clients.wait_for_more(100, 30)
    return clients, survivor


def test_failover_to_a_synchronous_standby_loses_nothing_acknowledged(
    synchronous: Pair, background: Background, eventually: Eventually
) -> None:
    clients, survivor = fail_over_under_load(
        synchronous, background, lambda _: eventually(lambda: len(synchronous.waiting_pids()) >= 3)
    )
    assert clients.lost(survivor) == ([], [])
    assert clients.failed_calls > 0  # some were running when the primary died, and were repeated
    assert len(set(clients.enqueued.values())) == len(clients.enqueued)


def test_failover_to_an_asynchronous_standby_loses_acknowledged_jobs(
    asynchronous: Pair, background: Background
) -> None:
    """The control: the test above can detect a loss.

    Jobs that were acknowledged after the break are lost.
    """
    clients, survivor = fail_over_under_load(asynchronous, background, lambda clients: clients.wait_for_more(100, 20))
    jobs, _ = clients.lost(survivor)
    assert len(jobs) >= 50
    assert len(set(clients.enqueued.values())) == len(clients.enqueued)


def test_asynchronous_failover_makes_tokens_stale_and_redelivers_jobs(asynchronous: Pair) -> None:
    with threaded_broker(TEST_SETTINGS, asynchronous.dsn) as broker:
        api = Api(broker.http, "orders")
        ids = {api.enqueue(payload=name)["id"] for name in ("completed", "claimed")}
        completed = api.claim_one()
        asynchronous.wait_for_replay()
        asynchronous.break_link()
        api.complete(completed)
        claimed = api.claim_one()
        lost = api.enqueue(key="k")
        asynchronous.fail_over()
        stale = {"lease_token": claimed["lease_token"]}
        assert post_until_available(api, f"/jobs/{claimed['id']}/complete", stale)["code"] == "lease_lost"
        assert api.job(completed["id"])["state"] == "running"
        assert api.complete(completed)["status"] == "settled"
        assert api.http.get(f"/jobs/{lost['id']}").status_code == 404
        redelivered = api.claim_one()
        assert (redelivered["id"], redelivered["lease_token"] != claimed["lease_token"]) == (claimed["id"], True)
        assert api.enqueue(key="k")["id"] not in ids | {lost["id"]}


def post_until_available(api: Api, path: str, body: dict[str, Any]) -> Any:
    """Repeats the call while the broker has no database."""
    while (response := api.http.post(path, json=body)).status_code == 503:
        pass
    return response.json()
