"""The primary is lost with the link to its standby cut before: what was acknowledged, and what is there afterwards."""

from collections.abc import Callable
from typing import Any

from tests.api import Api
from tests.broker import broker_process, threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import TestDatabase
from tests.failover.cluster import Pair
from tests.failover.load import Load, run_load
from tests.polls import Background

Eventually = Callable[[Callable[[], Any]], Any]


def fail_over_under_load(
    pair: Pair, background: Background, once_cut: Callable[[Load], object]
) -> tuple[Load, TestDatabase]:
    """`once_cut` returns when enough has happened between the cut of the link and the primary's end."""
    with broker_process(pair.dsn, log_level="error") as (broker, _), run_load(broker.base, background) as clients:
        clients.more(200, 50)
        pair.break_link()
        once_cut(clients)
        survivor = pair.fail_over()
        clients.more(100, 30)
    return clients, survivor


def test_failover_to_a_synchronous_standby_loses_nothing_acknowledged(
    synchronous: Pair, background: Background, eventually: Eventually
) -> None:
    clients, survivor = fail_over_under_load(
        synchronous, background, lambda _: eventually(lambda: len(synchronous.waiting()) >= 3)
    )
    assert clients.lost(survivor) == ([], [])
    assert clients.unanswered > 0  # some were under way when the primary died, and found out by asking again
    assert len(set(clients.enqueued.values())) == len(clients.enqueued)


def test_failover_to_an_asynchronous_standby_loses_acknowledged_jobs(asynchronous: Pair, background: Background) -> None:
    """The control: this test can see a loss. What was acknowledged after the cut is gone."""
    clients, survivor = fail_over_under_load(asynchronous, background, lambda clients: clients.more(100, 20))
    jobs, _ = clients.lost(survivor)
    assert len(jobs) >= 50
    assert len(set(clients.enqueued.values())) == len(clients.enqueued)


def test_asynchronous_failover_makes_tokens_stale_and_redelivers_jobs(asynchronous: Pair) -> None:
    with threaded_broker(TEST_SETTINGS, asynchronous.dsn) as broker:
        api = Api(broker.http, "orders")
        seen = {api.enqueue(payload=name)["id"] for name in ("done", "taken")}
        done = api.claim_one()
        asynchronous.wait_for_replay()
        asynchronous.break_link()
        api.complete(done)
        taken = api.claim_one()
        lost = api.enqueue(key="k")
        asynchronous.fail_over()
        assert (
            repeated(api, f"/jobs/{taken['id']}/complete", {"lease_token": taken["lease_token"]})["code"]
            == "lease_lost"
        )
        assert api.job(done["id"])["state"] == "running"
        assert api.complete(done)["status"] == "settled"
        assert api.http.get(f"/jobs/{lost['id']}").status_code == 404
        again = api.claim_one()
        assert (again["id"], again["lease_token"] != taken["lease_token"]) == (taken["id"], True)
        assert api.enqueue(key="k")["id"] not in seen | {lost["id"]}


def repeated(api: Api, path: str, body: dict[str, Any]) -> Any:
    """As long as the broker says that it has no database."""
    while (answer := api.http.post(path, json=body)).status_code == 503:
        pass
    return answer.json()
