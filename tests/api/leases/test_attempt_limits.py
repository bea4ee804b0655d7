"""What a failure, a crash and a delivery cost, and when a job becomes dead."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.api_client import Api, Json
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import TestDatabase
from tests.polls import metric_value

Expire = Callable[[Json], None]
Eventually = Callable[[Callable[[], Any]], Any]


def dead_letter(api: Api, job: Json) -> tuple[str, str, int, int]:
    letter = api.get(f"/dead-letters/{job['id']}")
    assert api.job(job["id"])["state"] == "dead"
    return letter["state"], letter["state_reason"], letter["attempt"], letter["crashes"]


def test_last_failed_attempt_makes_the_job_dead(api: Api) -> None:
    job = api.enqueue(max_attempts=2, retry={"base_seconds": 0, "jitter": 0})
    assert api.fail(api.claim_one())["state"] == "ready"
    assert api.fail(api.claim_one(wait_seconds=20), "for good")["state"] == "dead"
    assert dead_letter(api, job) == ("dead", "attempts_exhausted", 2, 0)
    assert api.job(job["id"])["error"]["message"] == "for good"
    assert api.claim()["jobs"] == []


def test_failure_that_is_not_retryable_makes_the_job_dead(api: Api) -> None:
    job = api.enqueue(max_attempts=9)
    assert api.fail(api.claim_one(), retryable=False, retry_after_seconds=5)["state"] == "dead"
    assert dead_letter(api, job) == ("dead", "not_retryable", 1, 0)


def test_expired_lease_costs_an_attempt_and_a_crash_and_is_ready_immediately(api: Api, expire: Expire) -> None:
    expired = metric_value(api.http, "leases_expired_total")
    job = api.enqueue()
    expire(api.claim_one(worker_id="w"))
    after = api.job(job["id"])
    assert (after["state"], after["attempt"], after["crashes"], after["deliveries"]) == ("ready", 1, 1, 1)
    assert not {"lease_expires_at", "state_reason"} & after.keys()
    (attempt,) = api.get(f"/jobs/{job['id']}/attempts")["items"]
    assert (attempt["outcome"], attempt["worker_id"]) == ("expire", "w")
    assert api.claim_one()["attempt"] == 2
    assert metric_value(api.http, "leases_expired_total") >= expired + 1


def test_third_crash_makes_the_job_dead_as_poison(api: Api, expire: Expire) -> None:
    job = api.enqueue(max_attempts=9)
    for crashes in (1, 2):
        expire(api.claim_one())
        assert (api.job(job["id"])["state"], api.job(job["id"])["crashes"]) == ("ready", crashes)
    expire(api.claim_one())
    assert dead_letter(api, job) == ("dead", "poison", 3, 3)


def test_failures_do_not_count_as_crashes(api: Api, expire: Expire) -> None:
    job = api.enqueue(max_attempts=9, retry={"base_seconds": 0, "jitter": 0})
    for _ in range(4):
        api.fail(api.claim_one(wait_seconds=20))
    expire(api.claim_one(wait_seconds=20))
    after = api.job(job["id"])
    assert (after["state"], after["attempt"], after["crashes"]) == ("ready", 5, 1)


def test_lease_expiry_on_the_last_attempt_makes_the_job_dead_with_the_reason(api: Api, expire: Expire) -> None:
    job = api.enqueue(max_attempts=1)
    expire(api.claim_one())
    assert dead_letter(api, job) == ("dead", "attempts_exhausted", 1, 1)
    assert api.job(job["id"])["error"]["error_type"] == "lease_expired"


def test_poison_job_does_not_hold_up_the_queue(api: Api, expire: Expire) -> None:
    poison, other = api.enqueue(priority=9), api.enqueue()
    for _ in range(3):
        expire(api.claim_one())
    assert dead_letter(api, poison)[1] == "poison"
    assert api.claim_one()["id"] == other["id"]


def test_release_and_snooze_cost_no_attempt(api: Api) -> None:
    job = api.enqueue(max_attempts=1)
    for _ in range(3):
        api.release(api.claim_one(wait_seconds=20))
        api.snooze(api.claim_one(), 0)
    held = api.claim_one(wait_seconds=20)
    assert (held["id"], held["attempt"], held["deliveries"]) == (job["id"], 1, 7)


@pytest.fixture
def three_deliveries(db: TestDatabase, queue: str) -> Iterator[Api]:
    """A broker that gives up on a job after three deliveries."""
    with threaded_broker(TEST_SETTINGS.model_copy(update={"max_deliveries": 3}), db.dsn) as broker:
        yield Api(broker.http, queue)


def test_job_delivered_max_deliveries_times_becomes_undeliverable(three_deliveries: Api) -> None:
    job = three_deliveries.enqueue()
    for state in ("ready", "ready", "dead"):
        assert three_deliveries.release(three_deliveries.claim_one())["state"] == state
    assert dead_letter(three_deliveries, job) == ("dead", "undeliverable", 0, 0)


def test_last_allowed_delivery_can_still_complete(three_deliveries: Api) -> None:
    three_deliveries.enqueue()
    three_deliveries.release(three_deliveries.claim_one())
    three_deliveries.snooze(three_deliveries.claim_one(), 0)
    assert three_deliveries.complete(three_deliveries.claim_one(wait_seconds=20))["state"] == "completed"


def test_replay_resets_attempts_and_crashes_but_not_deliveries(api: Api, expire: Expire) -> None:
    job = api.enqueue(max_attempts=1)
    expire(api.claim_one())
    api.post(f"/dead-letters/{job['id']}/replay")
    again = api.claim_one()
    assert (again["attempt"], again["deliveries"]) == (1, 2)
    assert api.job(job["id"])["crashes"] == 0


def test_more_expired_leases_than_one_batch_are_all_rescued(api: Api, db: TestDatabase, eventually: Eventually) -> None:
    api.post("/jobs/batch", {"jobs": [{"queue": api.queue, "job_type": "t"}] * 1000}, status=201)
    api.post("/jobs/batch", {"jobs": [{"queue": api.queue, "job_type": "t"}] * 200}, status=201)
    assert len(api.claim(max_jobs=1000)["jobs"] + api.claim(max_jobs=1000)["jobs"]) == 1200
    db.execute("UPDATE jobs SET lease_expires_at = now() - interval '1 second' WHERE state = 'running'")
    db.make_checks_due()
    eventually(lambda: db.value("SELECT count(*) FROM jobs WHERE state = 'ready' AND crashes = 1") == 1200)
