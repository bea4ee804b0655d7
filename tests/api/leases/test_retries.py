"""When a failed job runs again: back-off of the job or the settings, or the worker's delay."""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

from tests.api_client import Api, Json
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import TestDatabase

PLAIN = {"jitter": 0}


def delay_after_failure(api: Api, db: TestDatabase, **fields: Any) -> float:
    """Seconds between the failure and the next run."""
    held = api.claim_one()
    result = api.fail(held, **fields)
    failed_at = datetime.fromisoformat(api.get(f"/jobs/{held['id']}/attempts")["items"][-1]["ended_at"])
    return round((datetime.fromisoformat(result["run_at"]) - failed_at).total_seconds(), 1)


def run_now(api: Api, job: Json) -> None:
    api.post(f"/jobs/{job['id']}/run-now")


def test_back_off_grows_by_the_factor_up_to_max_seconds(api: Api, db: TestDatabase) -> None:
    job = api.enqueue(retry={"base_seconds": 2, "factor": 3, "max_seconds": 50, "jitter": 0}, max_attempts=10)
    delays = []
    for _ in range(5):
        delays.append(delay_after_failure(api, db))
        run_now(api, job)
    assert delays == [2, 6, 18, 50, 50]


def test_missing_fields_of_a_retry_policy_come_from_the_settings(api: Api, db: TestDatabase) -> None:
    job = api.enqueue(retry=PLAIN)
    assert delay_after_failure(api, db) == TEST_SETTINGS.retry_base_seconds
    run_now(api, job)
    assert delay_after_failure(api, db) == TEST_SETTINGS.retry_base_seconds * TEST_SETTINGS.retry_factor


@pytest.fixture
def other_settings(db: TestDatabase, queue: str) -> Iterator[Api]:
    update = {
        "retry_base_seconds": 7.0,
        "retry_factor": 10.0,
        "retry_max_seconds": 100.0,
        "retry_jitter": 0.0,
        "default_max_attempts": 4,
    }
    with threaded_broker(TEST_SETTINGS.model_copy(update=update), db.dsn) as broker:
        yield Api(broker.http, queue)


def test_jobs_without_a_retry_policy_use_the_settings(other_settings: Api, db: TestDatabase) -> None:
    api = other_settings
    job = api.enqueue()
    delays = []
    for _ in range(3):
        delays.append(delay_after_failure(api, db))
        run_now(api, job)
    assert delays == [7, 70, 100]
    assert api.fail(api.claim_one())["state"] == "dead"


def test_jitter_changes_the_delay_by_at_most_its_fraction(api: Api, db: TestDatabase) -> None:
    delays = set()
    for _ in range(20):
        api.enqueue(retry={"base_seconds": 100, "jitter": 0.5})
        delays.add(delay_after_failure(api, db))
    assert all(50 <= delay <= 150 for delay in delays)
    assert len(delays) > 1


def test_back_off_of_a_late_attempt_does_not_overflow(api: Api, db: TestDatabase) -> None:
    api.enqueue(retry={"base_seconds": 1, "factor": 1000, "max_seconds": 3600, "jitter": 0}, max_attempts=1000)
    db.execute("UPDATE jobs SET attempt = 900")
    assert delay_after_failure(api, db) == 3600


def test_retry_after_seconds_overrides_the_back_off(api: Api, db: TestDatabase) -> None:
    api.enqueue(retry={"base_seconds": 1, "max_seconds": 10, "jitter": 1})
    assert delay_after_failure(api, db, retry_after_seconds=500) == 500


IMMEDIATE: dict[str, Callable[[Api, Json], Json]] = {
    "fail": lambda api, held: api.fail(held, retry_after_seconds=0),
    "fail without back-off": lambda api, held: api.fail(held),
    "snooze": lambda api, held: api.snooze(held, 0),
}


@pytest.mark.parametrize("settle", IMMEDIATE.values(), ids=IMMEDIATE)
def test_zero_delay_makes_the_job_ready_immediately(api: Api, settle: Callable[[Api, Json], Json]) -> None:
    job = api.enqueue(retry={"base_seconds": 0, "jitter": 0})
    held = api.claim_one()
    first, again = settle(api, held), settle(api, held)
    assert (first["status"], again["status"]) == ("settled", "already_settled")
    assert (first["state"], again["state"]) == ("ready", "ready")
    assert "state_reason" not in api.job(job["id"])
    assert api.claim_one()["id"] == job["id"]


def test_retry_keeps_the_last_error_and_all_attempt_records(api: Api) -> None:
    job = api.enqueue(retry={"base_seconds": 0, "jitter": 0})
    for message in ("first", "second"):
        api.fail(api.claim_one(wait_seconds=20), message)
    assert api.job(job["id"])["error"]["message"] == "second"
    attempts = api.get(f"/jobs/{job['id']}/attempts")["items"]
    assert [(attempt["attempt"], attempt["error"]["message"]) for attempt in attempts] == [(1, "first"), (2, "second")]


def test_failure_keeps_the_checkpoint(api: Api) -> None:
    api.enqueue(retry={"base_seconds": 0, "jitter": 0})
    held = api.claim_one()
    api.heartbeat_one(held, checkpoint={"page": 9})
    api.fail(held)
    assert api.claim_one(wait_seconds=20)["checkpoint"] == {"page": 9}
