"""Two broker processes on one database, for all properties. `PROPERTIES` in the environment says how many examples are tried."""

import os
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.api import Api
from tests.broker import RunningBroker, broker_process
from tests.database import Loop, TestDatabase, create_database

QUICK = {"sweep_seconds": "0.05", "poll_seconds": "0.2", "max_crashes": "1000", "log_level": "error"}
FEW = 25  # enough to notice that something is broken for everybody; `make properties` tries many, and other ones each time


class World(NamedTuple):
    """What a model is compared with."""

    brokers: tuple[RunningBroker, RunningBroker]
    db: TestDatabase

    def apis(self, queue: str) -> tuple[Api, Api]:
        one, two = self.brokers
        return Api(one.http, queue), Api(two.http, queue)


@pytest.fixture(scope="module")
def world(postgres: str, loop: Loop) -> Iterator[World]:
    database = TestDatabase(create_database(postgres, loop, "properties"), loop)
    with broker_process(database.dsn, **QUICK) as (one, _), broker_process(database.dsn, **QUICK) as (two, _):
        yield World((one, two), database)
    database.close()


@pytest.fixture(scope="package")
def effort() -> settings:
    """The same examples each time, unless somebody asks for more. What fails is told as it was found: brokers may not do the same twice."""
    params = os.environ.get("PROPERTIES")
    return settings(
        max_examples=int(params or FEW),
        stateful_step_count=60 if params else 30,
        derandomize=params is None,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
