"""The database's clock jumps, as it may at a failover: leases expire early or late, and nothing
worse happens.
"""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

from tests.api_client import Api, parse_time
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import Loop
from tests.settable_clock import SettableClock

Eventually = Callable[[Callable[[], Any]], Any]


@pytest.fixture(scope="module")
def database(postgres: str, loop: Loop) -> Iterator[SettableClock]:
    database = SettableClock.create(postgres, loop, "jumpy")
    yield database
    database.close()


@pytest.fixture
def api(database: SettableClock, queue: str) -> Iterator[Api]:
    database.jump("0")
    with threaded_broker(TEST_SETTINGS, database.dsn) as broker:
        yield Api(broker.http, queue)


def test_clock_an_hour_ahead_expires_every_lease_and_settles_no_job_twice(
    api: Api, database: SettableClock, eventually: Eventually
) -> None:
    api.enqueue_many(50)
    claimed = api.claim(max_jobs=50)["jobs"]
    database.jump("1 hour")
    eventually(lambda: api.counts() == {"ready": 50})
    redelivered = api.claim(max_jobs=40)["jobs"]
    assert {job["deliveries"] for job in redelivered} == {2}
    # A job that was delivered again rejects its old token. A late settlement of any other job is
    # accepted.
    redelivered_ids = {job["id"] for job in redelivered}
    statuses = {
        job["id"]: api.http.post(f"/jobs/{job['id']}/complete", json={"lease_token": job["lease_token"]}).status_code
        for job in claimed
    }
    assert statuses == {job: 409 if job in redelivered_ids else 200 for job in statuses}
    assert all(api.complete(job)["status"] == "settled" for job in redelivered)
    assert api.counts() == {"completed": 50}


def test_clock_an_hour_back_extends_leases_and_keeps_ids_unique(
    api: Api, database: SettableClock, eventually: Eventually
) -> None:
    before = api.enqueue_many(20)
    claimed = api.claim(max_jobs=10)["jobs"]
    time_before = server_time(api)
    database.jump("-1 hour")
    eventually(lambda: server_time(api) < time_before)
    after = api.enqueue_many(20)
    assert len({*before, *after}) == 40
    assert all(api.complete(job)["status"] == "settled" for job in claimed)
    unclaimed = api.claim(max_jobs=40)["jobs"]
    assert len({job["id"] for job in unclaimed} - {job["id"] for job in claimed}) == 30


def server_time(api: Api) -> datetime:
    return parse_time(api.claim(queues=["elsewhere"])["server_time"])
