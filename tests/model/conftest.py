"""Two brokers on a clock that stands still. `PROPERTIES` in the environment says how many runs are tried."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.database import Loop, TestDatabase, create_database
from tests.model.brokers import Table

FEW = 60  # runs of 50 steps; `make properties` tries more, and other ones each time


@pytest.fixture(scope="module")
def table(postgres: str, loop: Loop) -> Iterator[Table]:
    database = TestDatabase(create_database(postgres, loop, "model"), loop)
    table = Table(database, loop)
    yield table
    table.close()
    database.close()


@pytest.fixture(scope="package")
def effort() -> settings:
    """The same runs each time, unless somebody asks for more. What fails is told as it was found: a race may not end the same way twice."""
    params = os.environ.get("PROPERTIES")
    return settings(
        max_examples=int(params or FEW),
        stateful_step_count=50,
        derandomize=params is None,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
