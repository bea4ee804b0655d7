"""Two broker processes on one database, for all property tests.

The environment variable `PROPERTIES` sets how many examples are tried.
"""

import os
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.api_client import Api
from tests.broker import RunningBroker, broker_process
from tests.database import Loop, TestDatabase, create_database

BROKER_SETTINGS = {"sweep_seconds": "0.05", "poll_seconds": "0.2", "max_crashes": "1000", "log_level": "error"}
# Enough to notice a general fault. `make properties` tries many, and other ones each time.
DEFAULT_EXAMPLES = 25


class BrokerPair(NamedTuple):
    """Two brokers on one database, with which a model is compared."""

    brokers: tuple[RunningBroker, RunningBroker]
    db: TestDatabase

    def apis(self, queue: str) -> tuple[Api, Api]:
        first, second = self.brokers
        return Api(first.http, queue), Api(second.http, queue)


@pytest.fixture(scope="module")
def broker_pair(postgres: str, loop: Loop) -> Iterator[BrokerPair]:
    database = TestDatabase(create_database(postgres, loop, "properties"), loop)
    with (
        broker_process(database.dsn, **BROKER_SETTINGS) as (first, _),
        broker_process(database.dsn, **BROKER_SETTINGS) as (second, _),
    ):
        yield BrokerPair((first, second), database)
    database.close()


@pytest.fixture(scope="package")
def hypothesis_settings() -> settings:
    """The same examples each time, unless `PROPERTIES` is set.

    Failures are not shrunk: brokers may not do the same twice.
    """
    examples = os.environ.get("PROPERTIES")
    return settings(
        max_examples=int(examples or DEFAULT_EXAMPLES),
        stateful_step_count=60 if examples else 30,
        derandomize=examples is None,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
