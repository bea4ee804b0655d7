"""A database of these tests alone.

The broker that most tests share writes its polls and workers up to a second later. On its database
they would be among the rows of the next test.
"""

from collections.abc import Iterator

import pytest

from app.broker import Broker, build_broker
from tests.conftest import TEST_SETTINGS
from tests.database import Loop, TestDatabase, create_database


@pytest.fixture(scope="package")
def isolated_database(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, "workers"), loop)
    yield database
    database.close()


@pytest.fixture
def isolated_db(isolated_database: TestDatabase) -> TestDatabase:
    isolated_database.empty()
    return isolated_database


@pytest.fixture
def isolated_services(isolated_db: TestDatabase, loop: Loop) -> Iterator[Broker]:
    """The services of a broker without HTTP server and background services."""
    broker_services = build_broker(TEST_SETTINGS, isolated_db.dsn)
    loop.run(broker_services.infra.db.open())
    loop.run(broker_services.infra.clock.refresh(broker_services.infra.db))
    yield broker_services
    loop.run(broker_services.infra.db.close())
