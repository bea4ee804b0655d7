"""A broker is killed between a commit and the admission of the next job: other brokers admit it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.api.concurrency.conftest import Worker
from tests.api_client import Api, Json
from tests.broker import broker_process
from tests.conftest import wait_until
from tests.database import TestDatabase

pytestmark = pytest.mark.slow

Settle = Callable[[Api, Json], object]


@contextmanager
def lane_lock_held(db: TestDatabase, job_id: str) -> Iterator[None]:
    """Admissions are made under the lane lock; here this test holds it."""
    lane = db.value("SELECT lane FROM jobs WHERE id = $1", job_id)
    db.execute("INSERT INTO lane_locks (lane) VALUES ($1) ON CONFLICT DO NOTHING", lane)
    with db.uncommitted("SELECT lane FROM lane_locks WHERE lane = $1 FOR UPDATE", lane):
        yield


def settle_and_kill(db: TestDatabase, api: Api, held: Json, settle: Settle) -> None:
    with broker_process(db.dsn, log_level="error") as (broker, process), lane_lock_held(db, held["id"]):
        settle(Api(broker.http, api.queue), held)
        process.kill()
        process.wait(30)


@pytest.mark.parametrize(
    "settle", [Api.complete, lambda api, job: api.fail(job, retryable=False)], ids=["complete", "dead letter"]
)
def test_next_job_of_the_group_is_admitted_after_the_settling_broker_was_killed(
    api: Api, db: TestDatabase, worker: Worker, settle: Settle
) -> None:
    api.configure(max_running_per_group=1)
    first, second = api.enqueue_many(2, group="a")
    settle_and_kill(db, api, worker.claim_expected(first), settle)
    worker.complete_in_order(second)


def test_cooldown_ends_after_the_broker_that_settled_the_probe_was_killed(
    api: Api, db: TestDatabase, worker: Worker
) -> None:
    jobs = api.enqueue_many(3, group="a")
    api.fail(api.claim_one(), scope="group", retryable=False, retry_after_seconds=1)
    probe = worker.claim(max_jobs=5)
    settle_and_kill(db, api, probe, Api.complete)
    wait_until(lambda: db.value("SELECT count(*) FROM group_cooldowns WHERE probe_job_id = $1", probe["id"]) == 0)
    assert worker.claim()["id"] in set(jobs) - {probe["id"]}


def test_jobs_enqueued_by_a_killed_broker_are_admitted(api: Api, db: TestDatabase, worker: Worker) -> None:
    api.configure(max_running_per_group=1)
    first = api.enqueue(group="a")
    with broker_process(db.dsn, log_level="error") as (broker, process), lane_lock_held(db, first["id"]):
        second = Api(broker.http, api.queue).enqueue(group="b")
        process.kill()
        process.wait(30)
    assert {worker.claim()["id"], worker.claim()["id"]} == {first["id"], second["id"]}
