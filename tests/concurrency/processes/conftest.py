"""Three broker processes on one database, as an operator runs them."""

from collections.abc import Iterator

import pytest

from tests.api.leases.conftest import WATCH_CLAIMS, ClaimStatements
from tests.api_client import Api
from tests.broker import RunningBroker, broker_process
from tests.database import Loop, TestDatabase, create_database

FAST_SETTINGS = {"sweep_seconds": "0.05", "log_level": "error"}


@pytest.fixture(scope="session")
def shared_database(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, "processes"), loop)
    database.execute(WATCH_CLAIMS)
    yield database
    database.close()


@pytest.fixture(scope="package")
def notified_brokers(shared_database: TestDatabase) -> Iterator[tuple[RunningBroker, RunningBroker]]:
    """Two brokers that learn of each other's jobs only by NOTIFY: they do not poll."""
    dsn = shared_database.dsn
    with (
        broker_process(dsn, poll_seconds="3600", **FAST_SETTINGS) as (first_api, _),
        broker_process(dsn, poll_seconds="3600", **FAST_SETTINGS) as (second_api, _),
    ):
        yield first_api, second_api


@pytest.fixture(scope="module")
def polling_broker(shared_database: TestDatabase) -> Iterator[RunningBroker]:
    """A broker without NOTIFY that polls for ready jobs. Only for modules that need it."""
    with broker_process(shared_database.dsn, poll_seconds="0.1", notify="false", **FAST_SETTINGS) as (broker, _):
        yield broker


@pytest.fixture
def shared_db(shared_database: TestDatabase) -> TestDatabase:
    shared_database.empty()
    return shared_database


@pytest.fixture
def first_api(notified_brokers: tuple[RunningBroker, RunningBroker], shared_db: TestDatabase, queue: str) -> Api:
    return Api(notified_brokers[0].http, queue)


@pytest.fixture
def second_api(notified_brokers: tuple[RunningBroker, RunningBroker], shared_db: TestDatabase, queue: str) -> Api:
    return Api(notified_brokers[1].http, queue)


@pytest.fixture
def third_api(polling_broker: RunningBroker, shared_db: TestDatabase, queue: str) -> Api:
    return Api(polling_broker.http, queue)


@pytest.fixture
def claim_statements(shared_db: TestDatabase) -> ClaimStatements:
    statements = ClaimStatements(shared_db)
    statements.forget()
    return statements
