"""Two brokers on a clock that stands still.

The environment variable `PROPERTIES` sets the number of runs.
"""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.concurrency.model.brokers import BrokerPair
from tests.database import Loop, TestDatabase, create_database

DEFAULT_RUNS = 60  # of 50 steps; `make properties` makes more runs, and other ones each time


@pytest.fixture(scope="module")
def brokers(postgres: str, loop: Loop) -> Iterator[BrokerPair]:
    database = TestDatabase(create_database(postgres, loop, "model"), loop)
    brokers = BrokerPair(database, loop)
    yield brokers
    brokers.close()
    database.close()


@pytest.fixture(scope="package")
def run_settings() -> settings:
    """The same runs each time, unless `PROPERTIES` is set.

    A failing run is reported as it was found and not shrunk: a race may not end the same way twice.
    """
    requested_runs = os.environ.get("PROPERTIES")
    return settings(
        max_examples=int(requested_runs or DEFAULT_RUNS),
        stateful_step_count=50,
        derandomize=requested_runs is None,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
