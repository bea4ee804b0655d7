"""Three broker processes on one database, as an operator runs them."""

from collections.abc import Iterator

import pytest

from tests.api import Api
from tests.broker import RunningBroker, broker_process
from tests.database import Loop, TestDatabase, create_database
from tests.leases.conftest import WATCH, ClaimStatements

QUICK = {"sweep_seconds": "0.05", "log_level": "error"}


@pytest.fixture(scope="session")
def common_database(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, "processes"), loop)
    database.execute(WATCH)
    yield database
    database.close()


@pytest.fixture(scope="package")
def told_brokers(common_database: TestDatabase) -> Iterator[tuple[RunningBroker, RunningBroker]]:
    """Two that hear of each other's jobs through NOTIFY and nothing else: they do not poll."""
    dsn = common_database.dsn
    with (
        broker_process(dsn, poll_seconds="3600", **QUICK) as (one, _),
        broker_process(dsn, poll_seconds="3600", **QUICK) as (two, _),
    ):
        yield one, two


@pytest.fixture(scope="module")
def polling_broker(common_database: TestDatabase) -> Iterator[RunningBroker]:
    """One that neither hears nor tells anything and looks by itself. Only for modules that need it."""
    with broker_process(common_database.dsn, poll_seconds="0.1", notify="false", **QUICK) as (broker, _):
        yield broker


@pytest.fixture
def common(common_database: TestDatabase) -> TestDatabase:
    common_database.empty()
    return common_database


@pytest.fixture
def one(told_brokers: tuple[RunningBroker, RunningBroker], common: TestDatabase, queue: str) -> Api:
    return Api(told_brokers[0].http, queue)


@pytest.fixture
def two(told_brokers: tuple[RunningBroker, RunningBroker], common: TestDatabase, queue: str) -> Api:
    return Api(told_brokers[1].http, queue)


@pytest.fixture
def three(polling_broker: RunningBroker, common: TestDatabase, queue: str) -> Api:
    return Api(polling_broker.http, queue)


@pytest.fixture
def claim_statements(common: TestDatabase) -> ClaimStatements:
    statements = ClaimStatements(common)
    statements.forget()
    return statements
