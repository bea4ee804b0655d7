"""Limits: brokers of their own, how a test knows that all turns have been decided, and how time passes by moving rows."""

from collections.abc import Callable, Iterator

import pytest

from tests.api import Api, Json
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import QUICK, wait_until
from tests.database import Loop, TestDatabase, create_database
from tests.limits.cooling import QUEUES, Cooling

Expire = Callable[[Json], None]

SENTINEL = "sentinel"


class Worker:
    """Takes jobs of one queue, waiting for each: whose turn it is is decided a moment after somebody came or left."""

    def __init__(self, api: Api) -> None:
        self.api = api

    def take(self, **fields: object) -> Json:
        return self.api.claim_one(wait_seconds=20, **fields)

    def takes(self, job: Json | str, **fields: object) -> Json:
        """This job is the next one, or the test fails."""
        taken = self.take(**fields)
        assert taken["id"] == (job if isinstance(job, str) else job["id"])
        return taken

    def does(self, *jobs: Json | str) -> None:
        """These are the next ones, in this order, one after the other."""
        for job in jobs:
            self.api.complete(self.takes(job))

    def gets_nothing(self) -> bool:
        """Also after everything that has happened so far has been decided on."""
        settled(self.api)
        return not self.api.claim(max_jobs=100)["jobs"]

    def does_all(self, count: int) -> list[Json]:
        """So many, one after the other, as they come."""
        done = []
        for _ in range(count):
            done.append(self.take())
            self.api.complete(done[-1])
        return done


def settled(api: Api) -> None:
    """A job of a group of its own is handed out when all that moved before it has been decided. For queues with turns and one lane."""
    api.enqueue(group=SENTINEL, job_type=SENTINEL)
    api.complete(api.claim_one(job_types=[SENTINEL], wait_seconds=20))


def ids(jobs: list[Json]) -> list[str]:
    return [job["id"] for job in jobs]


@pytest.fixture
def worker(api: Api) -> Worker:
    return Worker(api)


@pytest.fixture
def expire(api: Api, db: TestDatabase) -> Expire:
    """Lets a lease of the default length run out, and waits for the sweep."""

    def run_out(job: Json) -> None:
        db.age(job["id"], 61)
        wait_until(lambda: api.job(job["id"])["state"] != "running")

    return run_out


@pytest.fixture
def second_broker(dsn: str) -> Iterator[RunningBroker]:
    with threaded_broker(QUICK, dsn) as broker:
        yield broker


@pytest.fixture
def second(second_broker: RunningBroker, api: Api) -> Api:
    """Another broker on the same database, started after this test's other fixtures."""
    return Api(second_broker.http, api.queue)


@pytest.fixture(scope="package")
def lone_database(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, "limits"), loop)
    yield database
    database.close()


@pytest.fixture(scope="package")
def lone_broker(lone_database: TestDatabase) -> Iterator[RunningBroker]:
    with threaded_broker(
        QUICK.model_copy(update={"poll_seconds": 3600.0, "notify": False}), lone_database.dsn
    ) as broker:
        yield broker


@pytest.fixture
def lone_db(lone_database: TestDatabase) -> TestDatabase:
    lone_database.empty()
    return lone_database


@pytest.fixture
def lone(lone_broker: RunningBroker, lone_db: TestDatabase, queue: str) -> Api:
    """The API of a broker that is alone on its database and does not look for ready jobs by itself: what wakes here was woken."""
    return Api(lone_broker.http, queue)


@pytest.fixture(params=list(QUEUES.values()), ids=list(QUEUES))
def cool(request: pytest.FixtureRequest, api: Api) -> Cooling:
    """In every kind of queue."""
    api.configure(**request.param)
    return Cooling(api)
