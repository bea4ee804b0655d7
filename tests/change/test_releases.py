"""The release before on this one's schema, beside this one (B14, F5, F6). The reverse: tests/migrations/test_unmigrated.py."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.api import Api
from tests.broker import RunningBroker, broker_process
from tests.change.releases import release_process
from tests.database import Loop, TestDatabase, create_database
from tests.polls import Background, parked_polls

Eventually = Callable[[Callable[[], Any]], Any]
BRISK = {"sweep_seconds": "0.05", "poll_seconds": "0.2", "log_level": "error"}


@pytest.fixture(scope="module")
def shared(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    """At this release's schema."""
    database = TestDatabase(create_database(postgres, loop, "releases"), loop)
    yield database
    database.close()


@pytest.fixture(scope="module")
def both(shared: TestDatabase, previous: Path) -> Iterator[dict[str, RunningBroker]]:
    with release_process(previous, shared.dsn, **BRISK) as (before, _), broker_process(shared.dsn, **BRISK) as (now, _):
        yield {"before": before, "now": now}


@pytest.fixture(params=["before", "now"])
def one(request: pytest.FixtureRequest, both: dict[str, RunningBroker], shared: TestDatabase, queue: str) -> Api:
    """Either release; `other` is the other one."""
    shared.empty()
    return Api(both[request.param].http, queue)


@pytest.fixture
def other(one: Api, both: dict[str, RunningBroker]) -> Api:
    (http,) = [broker.http for broker in both.values() if broker.http is not one.http]
    return Api(http, one.queue)


def test_they_are_two_releases_and_both_ready(both: dict[str, RunningBroker]) -> None:
    """The control: keys came with this one."""
    assert both["before"].http.get("/api-keys").status_code == 404
    assert both["now"].http.get("/api-keys").status_code == 200
    assert [broker.http.get("/readyz").status_code for broker in both.values()] == [200, 200]


def test_a_job_lives_across_both(one: Api, other: Api) -> None:
    job = one.enqueue(payload={"n": 1}, key="k")
    assert other.enqueue(payload={"n": 1}, key="k")["id"] == job["id"]
    held = other.claim_one(worker_id="w", key="c")
    assert one.claim_one(worker_id="w", key="c")["lease_token"] == held["lease_token"]
    assert one.heartbeat("w", held)["leases"][0]["status"] == "extended"
    assert one.complete(held, result=2)["status"] == "settled"
    assert other.complete(held, result=2)["status"] == "already_settled"
    assert other.job(job["id"])["result"] == 2


def test_what_one_buries_the_other_revives(one: Api, other: Api) -> None:
    job = one.dead_letter()
    other.replay(job)
    held = one.claim_one()
    assert held["id"] == job["id"]
    assert other.fail(held)["state"] == "scheduled"


def test_policies_of_one_hold_on_the_other(one: Api, other: Api, eventually: Eventually) -> None:
    one.configure(max_running=1, max_waiting=2)
    eventually(lambda: other.get(f"/queues/{other.queue}")["max_running"] == 1)
    one.enqueue(), other.enqueue(unique={"key": "u"})
    assert one.enqueue(unique={"key": "u"}, status=200)
    assert one.enqueue(status=429)["code"] == other.enqueue(status=429)["code"] == "queue_full"
    held = other.claim_one()
    assert one.claim()["jobs"] == other.claim()["jobs"] == []
    one.complete(held)
    other.complete(one.claim_one(wait_seconds=20))


def test_a_poll_on_one_hears_of_a_job_on_the_other(
    one: Api, other: Api, background: Background, eventually: Eventually
) -> None:
    poll = background.claim(one)
    eventually(lambda: parked_polls(one.http) == 1)
    job = other.enqueue()
    assert poll.result(20)["jobs"][0]["id"] == job["id"]


def test_a_family_and_an_expiry_across_both(one: Api, other: Api, shared: TestDatabase, eventually: Eventually) -> None:
    parent = one.enqueue()
    child = other.enqueue(depends_on=[parent["id"]])
    lost = one.claim_one()
    shared.age(lost["id"], 61)
    again = other.claim_one(wait_seconds=20)
    assert (again["id"], again["attempt"]) == (parent["id"], 2)
    assert other.heartbeat("w", lost)["leases"][0]["status"] == "lost"
    one.complete(again)
    assert other.claim_one(wait_seconds=20)["id"] == child["id"]


def test_claimers_on_both_never_share_a_job_and_both_count_alike(one: Api, other: Api, background: Background) -> None:
    ids = set(one.enqueue_many(150)) | set(other.enqueue_many(150))
    taken = background.together(*[partial(take_all, api) for api in (one, other, one, other)])
    rest = take_all(one)
    assert sorted(job for hand in (*taken, rest) for job in hand) == sorted(ids)
    assert one.counts() == other.counts() == {"completed": 300}


def take_all(api: Api) -> list[str]:
    taken: list[str] = []
    while jobs := api.claim(max_jobs=7)["jobs"]:
        taken += [job["id"] for job in jobs]
        api.settle(*[{"job_id": job["id"], "lease_token": job["lease_token"], "outcome": "complete"} for job in jobs])
    return taken
