"""Fixtures for limits: further brokers, a worker that checks the order, and waiting for admissions.

Time passes by moving rows.
"""

import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.api.concurrency.cooling_group import QUEUES, CoolingGroup
from tests.api_client import Api, Json
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import TEST_SETTINGS, wait_until
from tests.database import Loop, TestDatabase, create_database

Expire = Callable[[Json], None]

SENTINEL = "sentinel"
_sentinel_numbers = itertools.count(1)


class Worker:
    """Claims jobs of one queue. Uses long polls: admissions are made a moment after a job moves."""

    def __init__(self, api: Api) -> None:
        self.api = api

    def claim(self, **fields: object) -> Json:
        return self.api.claim_one(wait_seconds=20, **fields)

    def claim_expected(self, job: Json | str, **fields: object) -> Json:
        """Claims the next job, which must be this one."""
        claimed = self.claim(**fields)
        assert claimed["id"] == (job if isinstance(job, str) else job["id"])
        return claimed

    def complete_in_order(self, *jobs: Json | str) -> None:
        """Claims and completes one job after the other, which must be these in this order."""
        for job in jobs:
            self.api.complete(self.claim_expected(job))

    def finds_nothing(self) -> bool:
        """Returns whether no job can be claimed, once every decision is made."""
        wait_until_admitted(self.api)
        return not self.api.claim(max_jobs=100)["jobs"]

    def complete_any(self, count: int) -> list[Json]:
        """Claims and completes `count` jobs, one after the other, in any order."""
        jobs = []
        for _ in range(count):
            jobs.append(self.claim())
            self.api.complete(jobs[-1])
        return jobs


def wait_until_admitted(api: Api) -> None:
    """Waits until the scheduler has decided about every job that has moved so far.

    A job of a group of its own is delivered only after that. For queues with admissions and one
    lane. The group is a new one: a check after the end of the last such job could admit this job
    before the others are decided.
    """
    api.enqueue(group=f"{SENTINEL}-{next(_sentinel_numbers)}", job_type=SENTINEL)
    api.complete(api.claim_one(job_types=[SENTINEL], wait_seconds=20))


def ids(jobs: list[Json]) -> list[str]:
    return [job["id"] for job in jobs]


@pytest.fixture
def worker(api: Api) -> Worker:
    return Worker(api)


@pytest.fixture
def expire(api: Api, db: TestDatabase) -> Expire:
    """Lets a lease of the default length expire, and waits for the rescuer."""

    def expire_lease(job: Json) -> None:
        db.age(job["id"], 61)
        wait_until(lambda: api.job(job["id"])["state"] != "running")

    return expire_lease


@pytest.fixture
def second_broker(dsn: str) -> Iterator[RunningBroker]:
    with threaded_broker(TEST_SETTINGS, dsn) as broker:
        yield broker


@pytest.fixture
def second_api(second_broker: RunningBroker, api: Api) -> Api:
    """The API of another broker on the same database, started after the fixtures of this test."""
    return Api(second_broker.http, api.queue)


@pytest.fixture(scope="package")
def isolated_database(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, "limits"), loop)
    yield database
    database.close()


@pytest.fixture(scope="package")
def isolated_broker(isolated_database: TestDatabase) -> Iterator[RunningBroker]:
    with threaded_broker(
        TEST_SETTINGS.model_copy(update={"poll_seconds": 3600.0, "notify": False}), isolated_database.dsn
    ) as broker:
        yield broker


@pytest.fixture
def isolated_db(isolated_database: TestDatabase) -> TestDatabase:
    isolated_database.empty()
    return isolated_database


@pytest.fixture
def isolated_api(isolated_broker: RunningBroker, isolated_db: TestDatabase, queue: str) -> Api:
    """The API of a broker that is alone on its database and does not scan for ready jobs.

    A poll that wakes here was woken by an event.
    """
    return Api(isolated_broker.http, queue)


@pytest.fixture(params=list(QUEUES.values()), ids=list(QUEUES))
def cooling_group(request: pytest.FixtureRequest, api: Api) -> CoolingGroup:
    """A cooling group, in every kind of queue."""
    api.configure(**request.param)
    return CoolingGroup(api)
