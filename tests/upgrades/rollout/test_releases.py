"""The previous release runs on this release's schema, beside this release.

Faults: docs/reliability/faults.md#b14, #f5, #f6. The reverse case (this release on an older
schema) is tests/upgrades/migrations/test_outdated_schema.py."""

import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app.db.migrations import ROOT
from tests.api_client import Api
from tests.broker import RunningBroker, broker_process
from tests.database import Loop, TestDatabase, create_database
from tests.polls import Background, parked_polls
from tests.upgrades.rollout.releases import release_process

Eventually = Callable[[Callable[[], Any]], Any]
FAST_SETTINGS = {"sweep_seconds": "0.05", "poll_seconds": "0.2", "log_level": "error"}


@pytest.fixture(scope="module")
def shared_database(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    """A database with this release's schema, used by both releases."""
    database = TestDatabase(create_database(postgres, loop, "releases"), loop)
    yield database
    database.close()


@pytest.fixture(scope="module")
def processes(
    shared_database: TestDatabase, previous: Path
) -> Iterator[dict[str, tuple[RunningBroker, "subprocess.Popen[str]"]]]:
    with (
        release_process(previous, shared_database.dsn, **FAST_SETTINGS) as previous_process,
        broker_process(shared_database.dsn, **FAST_SETTINGS) as current_process,
    ):
        yield {"previous": previous_process, "current": current_process}


@pytest.fixture(scope="module")
def both_releases(processes: dict[str, tuple[RunningBroker, "subprocess.Popen[str]"]]) -> dict[str, RunningBroker]:
    return {release: broker for release, (broker, _) in processes.items()}


@pytest.fixture(params=["previous", "current"])
def first_api(
    request: pytest.FixtureRequest, both_releases: dict[str, RunningBroker], shared_database: TestDatabase, queue: str
) -> Api:
    """A broker of either release; `other` is the broker of the other release."""
    shared_database.empty()
    return Api(both_releases[request.param].http, queue)


@pytest.fixture
def second_api(first_api: Api, both_releases: dict[str, RunningBroker]) -> Api:
    (http,) = [broker.http for broker in both_releases.values() if broker.http is not first_api.http]
    return Api(http, first_api.queue)


def test_brokers_are_of_two_releases_and_both_are_ready(
    processes: dict[str, tuple[RunningBroker, "subprocess.Popen[str]"]], previous: Path
) -> None:
    """Control: `python -m app` imports the source tree of its working directory."""
    folders = {release: Path(f"/proc/{process.pid}/cwd").resolve() for release, (_, process) in processes.items()}
    assert folders == {"previous": previous.resolve(), "current": ROOT}
    assert [broker.http.get("/readyz").status_code for broker, _ in processes.values()] == [200, 200]


def test_lifecycle_of_a_job_spans_both_releases(first_api: Api, second_api: Api) -> None:
    job = first_api.enqueue(payload={"n": 1}, key="k")
    assert second_api.enqueue(payload={"n": 1}, key="k")["id"] == job["id"]
    held = second_api.claim_one(worker_id="w", key="c")
    assert first_api.claim_one(worker_id="w", key="c")["lease_token"] == held["lease_token"]
    assert first_api.heartbeat("w", held)["leases"][0]["status"] == "extended"
    assert first_api.complete(held, result=2)["status"] == "settled"
    assert second_api.complete(held, result=2)["status"] == "already_settled"
    assert second_api.job(job["id"])["result"] == 2


def test_dead_letter_of_one_release_is_replayed_by_the_other(first_api: Api, second_api: Api) -> None:
    job = first_api.dead_letter()
    second_api.replay(job)
    held = first_api.claim_one()
    assert held["id"] == job["id"]
    assert second_api.fail(held)["state"] == "scheduled"


def test_queue_limits_set_on_one_release_apply_on_the_other(
    first_api: Api, second_api: Api, eventually: Eventually
) -> None:
    first_api.configure(max_running=1, max_waiting=2)
    eventually(lambda: second_api.get(f"/queues/{second_api.queue}")["max_running"] == 1)
    first_api.enqueue(), second_api.enqueue(unique={"key": "u"})
    assert first_api.enqueue(unique={"key": "u"}, status=200)
    assert first_api.enqueue(status=429)["code"] == second_api.enqueue(status=429)["code"] == "queue_full"
    held = second_api.claim_one()
    assert first_api.claim()["jobs"] == second_api.claim()["jobs"] == []
    first_api.complete(held)
    second_api.complete(first_api.claim_one(wait_seconds=20))


def test_poller_on_one_release_is_woken_by_a_job_of_the_other(
    first_api: Api, second_api: Api, background: Background, eventually: Eventually
) -> None:
    poll = background.claim(first_api)
    eventually(lambda: parked_polls(first_api.http) == 1)
    job = second_api.enqueue()
    assert poll.result(20)["jobs"][0]["id"] == job["id"]


def test_dependencies_and_lease_expiry_work_across_both_releases(
    first_api: Api, second_api: Api, shared_database: TestDatabase, eventually: Eventually
) -> None:
    parent = first_api.enqueue()
    child = second_api.enqueue(depends_on=[parent["id"]])
    expired = first_api.claim_one()
    shared_database.age(expired["id"], 61)
    reclaimed = second_api.claim_one(wait_seconds=20)
    assert (reclaimed["id"], reclaimed["attempt"]) == (parent["id"], 2)
    assert second_api.heartbeat("w", expired)["leases"][0]["status"] == "lost"
    first_api.complete(reclaimed)
    assert second_api.claim_one(wait_seconds=20)["id"] == child["id"]


def test_claims_on_both_releases_never_share_a_job_and_counts_agree(
    first_api: Api, second_api: Api, background: Background
) -> None:
    ids = set(first_api.enqueue_many(150)) | set(second_api.enqueue_many(150))
    claimed = background.together(
        *[partial(claim_and_complete_all, api) for api in (first_api, second_api, first_api, second_api)]
    )
    remaining = claim_and_complete_all(first_api)
    assert sorted(job for ids_ in (*claimed, remaining) for job in ids_) == sorted(ids)
    assert first_api.counts() == second_api.counts() == {"completed": 300}


def claim_and_complete_all(api: Api) -> list[str]:
    claimed: list[str] = []
    while jobs := api.claim(max_jobs=7)["jobs"]:
        claimed += [job["id"] for job in jobs]
        api.settle(*[{"job_id": job["id"], "lease_token": job["lease_token"], "outcome": "complete"} for job in jobs])
    return claimed
