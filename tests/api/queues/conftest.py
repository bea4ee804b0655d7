"""Other brokers on the database of the shared one."""

from collections.abc import Iterator

import pytest

from tests.api_client import Api
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import TestDatabase


@pytest.fixture(scope="module")
def second_broker(dsn: str) -> Iterator[RunningBroker]:
    with threaded_broker(TEST_SETTINGS, dsn) as broker:
        yield broker


@pytest.fixture
def second_api(second_broker: RunningBroker, db: TestDatabase, queue: str) -> Api:
    return Api(second_broker.http, queue)


@pytest.fixture(scope="package")
def no_creation_broker(dsn: str) -> Iterator[RunningBroker]:
    """A broker with `create_queues` off."""
    with threaded_broker(TEST_SETTINGS.model_copy(update={"create_queues": False}), dsn) as broker:
        yield broker


@pytest.fixture
def no_creation_api(no_creation_broker: RunningBroker, db: TestDatabase, queue: str) -> Api:
    return Api(no_creation_broker.http, queue)
