"""A broker that is killed after a settlement was committed and before it was decided who is next: others see to it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.api import Api, Json
from tests.broker import broker_process
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.limits.conftest import Worker

Settle = Callable[[Api, Json], object]


@contextmanager
def nobody_decides(db: TestDatabase, job_id: str) -> Iterator[None]:
    """Whose turn it is is decided by who has the gate of the lane; here this test has it."""
    lane = db.value("SELECT lane FROM jobs WHERE id = $1", job_id)
    db.execute("INSERT INTO gates (lane) VALUES ($1) ON CONFLICT DO NOTHING", lane)
    with db.uncommitted("SELECT lane FROM gates WHERE lane = $1 FOR UPDATE", lane):
        yield


def settle_and_die(db: TestDatabase, api: Api, held: Json, settle: Settle) -> None:
    with broker_process(db.dsn, log_level="error") as (broker, process), nobody_decides(db, held["id"]):
        settle(Api(broker.http, api.queue), held)
        process.kill()
        process.wait(30)


@pytest.mark.parametrize(
    "settle", [Api.complete, lambda api, job: api.fail(job, retryable=False)], ids=["complete", "death"]
)
def test_the_next_job_of_the_group_still_gets_its_turn(
    api: Api, db: TestDatabase, worker: Worker, settle: Settle
) -> None:
    api.configure(max_running_per_group=1)
    first, second = api.enqueue_many(2, group="a")
    settle_and_die(db, api, worker.takes(first), settle)
    worker.does(second)


def test_after_a_rest_the_others_still_go_on(api: Api, db: TestDatabase, worker: Worker) -> None:
    jobs = api.enqueue_many(3, group="a")
    api.fail(api.claim_one(), scope="group", retryable=False, retry_after_seconds=1)
    probe = worker.take(max_jobs=5)
    settle_and_die(db, api, probe, Api.complete)
    wait_until(lambda: db.value("SELECT count(*) FROM rests WHERE probe = $1", probe["id"]) == 0)
    assert worker.take()["id"] in set(jobs) - {probe["id"]}


def test_jobs_that_it_had_just_taken_in_get_their_turns(api: Api, db: TestDatabase, worker: Worker) -> None:
    api.configure(max_running_per_group=1)
    first = api.enqueue(group="a")
    with broker_process(db.dsn, log_level="error") as (broker, process), nobody_decides(db, first["id"]):
        second = Api(broker.http, api.queue).enqueue(group="b")
        process.kill()
        process.wait(30)
    assert {worker.take()["id"], worker.take()["id"]} == {first["id"], second["id"]}
