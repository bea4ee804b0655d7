"""Everything that makes a job claimable wakes a poller, here on a broker that never polls."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.api_client import Api, Json
from tests.database import TestDatabase
from tests.polls import Background, parked_polls

Eventually = Callable[[Callable[[], Any]], Any]
Waker = Callable[[Api, TestDatabase, Json], object]


def enqueued(api: Api) -> Json:
    """No job yet: the waker enqueues it."""
    return {"queue": api.queue}


def scheduled(api: Api) -> Json:
    return api.enqueue(delay_seconds=3600)


def leased(api: Api) -> Json:
    api.enqueue()
    return api.claim_one(worker_id="lazy")


def dead(api: Api) -> Json:
    return api.dead_letter()


def become_due(api: Api, db: TestDatabase, job: Json) -> None:
    db.age(job["id"], 3600)


def expire(api: Api, db: TestDatabase, job: Json) -> None:
    db.age(job["id"], 61)


def reconcile(api: Api, db: TestDatabase, job: Json) -> None:
    db.age(job["id"], 3)
    for _ in range(2):
        api.heartbeat("lazy", holds_all=True)


@pytest.mark.parametrize(
    ("before", "waker"),
    [
        (enqueued, lambda api, db, job: api.enqueue()),
        (
            enqueued,
            lambda api, db, job: api.post("/jobs/batch", {"jobs": [{"queue": api.queue, "job_type": "t"}]}, status=201),
        ),
        (
            enqueued,
            lambda api, db, job: api.http.post(
                "/jobs", json={"queue": api.queue, "job_type": "t"}, headers={"Idempotency-Key": "k"}
            ),
        ),
        (enqueued, lambda api, db, job: api.enqueue(delay_seconds=1)),
        (scheduled, become_due),
        (scheduled, lambda api, db, job: api.post(f"/jobs/{job['id']}/run-now")),
        (scheduled, lambda api, db, job: api.patch(f"/jobs/{job['id']}", {"run_at": "2020-01-01T00:00:00Z"})),
        (leased, lambda api, db, job: api.release(job)),
        (leased, lambda api, db, job: api.snooze(job, 0)),
        (leased, lambda api, db, job: api.fail(job, retry_after_seconds=0)),
        (leased, expire),
        (leased, reconcile),
        (dead, lambda api, db, job: api.post(f"/dead-letters/{job['id']}/replay")),
        (dead, lambda api, db, job: api.post("/dead-letters/replay", {"filter": {"queue": api.queue}})),
    ],
    ids=[
        "enqueue",
        "batch",
        "enqueue with a key",
        "delay over",
        "due",
        "run now",
        "moved to the past",
        "release",
        "snooze over",
        "back-off over",
        "lease expiry",
        "reconciliation",
        "replay",
        "replay by filter",
    ],
)
def test_poller_is_woken_by(
    quiet: Api,
    quiet_db: TestDatabase,
    background: Background,
    eventually: Eventually,
    before: Callable[[Api], Json],
    waker: Waker,
) -> None:
    job = before(quiet)
    poll = background.claim(quiet)
    eventually(lambda: parked_polls(quiet.http) == 1)
    waker(quiet, quiet_db, job)
    claimed = poll.result(20)["jobs"]
    assert [got["id"] for got in claimed] == [job.get("id", claimed[0]["id"])]


def test_poller_of_an_unknown_queue_is_woken_when_the_queue_is_created(
    quiet: Api, background: Background, eventually: Eventually
) -> None:
    poll = background.claim(quiet, queues=[f"{quiet.queue}-new"])
    eventually(lambda: parked_polls(quiet.http) == 1)
    job = quiet.enqueue(queue=f"{quiet.queue}-new")
    assert poll.result(20)["jobs"][0]["id"] == job["id"]


def test_poller_of_several_queues_is_woken_by_each(quiet: Api, background: Background, eventually: Eventually) -> None:
    queues = [quiet.queue, f"{quiet.queue}-2", f"{quiet.queue}-3"]
    for queue in queues:
        poll = background.claim(quiet, queues=queues)
        eventually(lambda: parked_polls(quiet.http) == 1)
        quiet.enqueue(queue=queue)
        assert poll.result(20)["jobs"][0]["queue"] == queue


def test_directive_ends_the_polls_of_its_worker_and_of_no_other(
    quiet: Api, background: Background, eventually: Eventually
) -> None:
    drained = background.claim(quiet, worker_id="drained")
    other = background.claim(quiet, worker_id="other")
    eventually(lambda: parked_polls(quiet.http) == 2)
    quiet.post("/workers/drained/drain")
    response = drained.result(20)
    assert (response["jobs"], response["directive"]) == ([], "drain")
    assert not other.done()
    quiet.enqueue()
    assert other.result(20)["directive"] == "run"


def test_worker_with_a_directive_gets_no_jobs_until_it_is_resumed(quiet: Api) -> None:
    quiet.enqueue()
    quiet.claim(worker_id="w", queues=["elsewhere"])
    quiet.post("/workers/w/stop")
    response = quiet.claim(worker_id="w")
    assert (response["jobs"], response["directive"], response["poll_after_ms"] > 0) == ([], "stop", True)
    assert quiet.heartbeat("w")["directive"] == "stop"
    quiet.post("/workers/w/resume")
    assert quiet.claim(worker_id="w")["jobs"]
