"""The database's clock jumps, as it may when another server takes over: leases end early or late, and nothing worse."""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

from tests.api import Api, parse_time
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import Loop
from tests.settable_clock import SettableClock

Eventually = Callable[[Callable[[], Any]], Any]


@pytest.fixture(scope="module")
def jumpy(postgres: str, loop: Loop) -> Iterator[SettableClock]:
    database = SettableClock.create(postgres, loop, "jumpy")
    yield database
    database.close()


@pytest.fixture
def api(jumpy: SettableClock, queue: str) -> Iterator[Api]:
    jumpy.jump("0")
    with threaded_broker(TEST_SETTINGS, jumpy.dsn) as broker:
        yield Api(broker.http, queue)


def test_clock_an_hour_ahead_expires_every_lease_and_settles_no_job_twice(
    api: Api, jumpy: SettableClock, eventually: Eventually
) -> None:
    api.enqueue_many(50)
    held = api.claim(max_jobs=50)["jobs"]
    jumpy.jump("1 hour")
    eventually(lambda: api.counts() == {"ready": 50})
    again = api.claim(max_jobs=40)["jobs"]
    assert {job["deliveries"] for job in again} == {2}
    # Whom the job was taken from is refused; who lost his lease to nobody may still settle.
    taken = {job["id"] for job in again}
    answers = {
        job["id"]: api.http.post(f"/jobs/{job['id']}/complete", json={"lease_token": job["lease_token"]}).status_code
        for job in held
    }
    assert answers == {job: 409 if job in taken else 200 for job in answers}
    assert all(api.complete(job)["status"] == "settled" for job in again)
    assert api.counts() == {"completed": 50}


def test_clock_an_hour_back_extends_leases_and_keeps_ids_unique(
    api: Api, jumpy: SettableClock, eventually: Eventually
) -> None:
    before = api.enqueue_many(20)
    held = api.claim(max_jobs=10)["jobs"]
    heard_at = told_time(api)
    jumpy.jump("-1 hour")
    eventually(lambda: told_time(api) < heard_at)
    after = api.enqueue_many(20)
    assert len({*before, *after}) == 40
    assert all(api.complete(job)["status"] == "settled" for job in held)
    rest = api.claim(max_jobs=40)["jobs"]
    assert len({job["id"] for job in rest} - {job["id"] for job in held}) == 30


def told_time(api: Api) -> datetime:
    return parse_time(api.claim(queues=["elsewhere"])["server_time"])
