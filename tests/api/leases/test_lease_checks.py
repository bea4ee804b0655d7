"""Lease checks: every claim has one, and the lease rescuer moves and deletes them."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from tests.api_client import Api
from tests.broker import RunningBroker
from tests.conftest import wait_until
from tests.coverage import UNCOVERED_JOBS
from tests.database import TestDatabase
from tests.polls import Background, parked_polls

Eventually = Callable[[Callable[[], Any]], Any]


def checks(db: TestDatabase) -> list[set[str]]:
    """The jobs of each lease check, in the order in which they are due."""
    rows = db.rows("SELECT job_ids FROM lease_checks ORDER BY check_at")
    return [{str(job_id) for job_id in row["job_ids"]} for row in rows]


def due_in(db: TestDatabase) -> list[int]:
    """The seconds until each lease check is due, rounded to tens."""
    rows = db.rows("SELECT check_at - now() AS due_in FROM lease_checks ORDER BY check_at")
    return [round(row["due_in"] / timedelta(seconds=10)) * 10 for row in rows]


def held_leases(api: Api) -> dict[str, int]:
    return {worker["worker_id"]: worker["held_leases"] for worker in api.get("/workers")["items"]}


def test_claim_has_one_check_at_the_end_of_its_leases(api: Api, db: TestDatabase) -> None:
    ids = api.enqueue_many(3)
    api.claim(max_jobs=3, lease_seconds=30)
    assert (checks(db), due_in(db)) == ([set(ids)], [30])


def test_long_leases_are_checked_after_a_minute(api: Api, db: TestDatabase) -> None:
    api.enqueue()
    api.claim_one(lease_seconds=3600)
    assert due_in(db) == [60]


def test_shortest_lease_of_a_claim_counts(api: Api, db: TestDatabase) -> None:
    api.batch({"lease_seconds": 50}, {"lease_seconds": 20}, {"lease_seconds": 40})
    api.claim(max_jobs=3)
    assert due_in(db) == [20]


def test_completion_of_all_jobs_deletes_the_check(api: Api, db: TestDatabase) -> None:
    api.enqueue_many(3)
    jobs = api.claim(max_jobs=3)["jobs"]
    api.settle(*[{"job_id": job["id"], "lease_token": job["lease_token"], "outcome": "complete"} for job in jobs])
    assert checks(db) == []


def test_check_of_jobs_that_were_settled_one_by_one_is_deleted_when_due(
    api: Api, db: TestDatabase, eventually: Eventually
) -> None:
    api.enqueue_many(3)
    first, second, third = api.claim(max_jobs=3)["jobs"]
    api.complete(first)
    api.fail(second, retryable=False)
    api.snooze(third, 60)
    assert len(checks(db)) == 1
    db.make_checks_due()
    eventually(lambda: checks(db) == [])


def test_check_of_jobs_with_extended_leases_is_moved(api: Api, db: TestDatabase, eventually: Eventually) -> None:
    api.enqueue_many(2)
    jobs = api.claim(max_jobs=2, worker_id="w", lease_seconds=30)["jobs"]
    for job, seconds in zip(jobs, (500, 200), strict=True):
        api.heartbeat_one(job, lease_seconds=seconds)
    assert due_in(db) == [30], "heartbeats do not touch checks"
    db.make_checks_due()
    eventually(lambda: due_in(db) == [200])


def test_heartbeat_that_shortens_a_lease_adds_a_check(api: Api, db: TestDatabase) -> None:
    ids = api.enqueue_many(2)
    first, second = api.claim(max_jobs=2, lease_seconds=50)["jobs"]
    api.heartbeat_one(first, lease_seconds=20)
    api.heartbeat_one(second, lease_seconds=300)
    assert (checks(db), due_in(db)) == ([{ids[0]}, set(ids)], [20, 50])


def test_job_whose_lease_was_shortened_is_rescued(api: Api, db: TestDatabase, eventually: Eventually) -> None:
    job = api.enqueue()
    api.heartbeat_one(api.claim_one(lease_seconds=3600), lease_seconds=1)
    eventually(lambda: api.job(job["id"])["state"] == "ready")


def test_matched_jobs_have_a_check_for_each_poller(
    quiet: Api, quiet_db: TestDatabase, quiet_broker: RunningBroker, background: Background
) -> None:
    polls = [background.claim(quiet, worker_id=worker, lease_seconds=50, wait_seconds=20) for worker in ("a", "b")]
    services = quiet_broker.broker_services
    assert services is not None
    wait_until(lambda: sum(poller.is_asleep for poller in services.pollers.pollers()) == 2)
    ids = quiet.enqueue_many(2)
    delivered = [job["id"] for poll in polls for job in poll.result(20)["jobs"]]
    assert sorted(delivered) == sorted(ids)
    assert parked_polls(quiet.http) == 0
    assert sorted(checks(quiet_db), key=min) == [{job_id} for job_id in sorted(ids)]
    assert quiet_db.rows(UNCOVERED_JOBS) == []


def test_leases_of_a_worker_are_counted_by_their_checks(api: Api) -> None:
    api.enqueue_many(4)
    first, *_ = api.claim(max_jobs=3, worker_id="w")["jobs"]
    api.claim_one(worker_id="w")
    api.complete(first)
    wait_until(lambda: held_leases(api) == {"w": 3})


def test_job_that_a_worker_claims_again_is_counted_once(api: Api) -> None:
    """The check of its first claim lists it, too."""
    api.enqueue_many(2)
    job, _ = api.claim(max_jobs=2, worker_id="w")["jobs"]
    api.release(job)
    api.claim_one(worker_id="w")
    wait_until(lambda: held_leases(api) == {"w": 2})
