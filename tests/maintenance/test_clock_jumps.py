"""The database's clock jumps ahead, and nothing is deleted or duplicated by it."""

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest

from app.broker import Broker, build_broker
from app.maintenance.chores import Cleaner, Partitions
from tests.api import Api, Json, when
from tests.broker import threaded_broker
from tests.conftest import QUICK
from tests.database import Loop
from tests.maintenance.conftest import partitions
from tests.settable_clock import SettableClock

_numbers = itertools.count(1)
KEPT = ("finished_jobs", "dead_letters", "keys", "workers", "asks", "stat_rates", "stat_times")


@pytest.fixture
def database(postgres: str, loop: Loop) -> Iterator[SettableClock]:
    """A new database for each test: no other broker works on it, and it has no partition of another test."""
    database = SettableClock.create(postgres, loop, f"settable_{next(_numbers)}")
    yield database
    database.close()


@pytest.fixture
def api(database: SettableClock) -> Iterator[Api]:
    with threaded_broker(QUICK, database.dsn) as broker:
        yield Api(broker.http, "jumps")


@contextmanager
def broker_without_services(database: SettableClock, loop: Loop) -> Iterator[Broker]:
    broker_services = build_broker(QUICK, database.dsn)
    loop.run(broker_services.infra.db.open())
    try:
        yield broker_services
    finally:
        loop.run(broker_services.infra.db.close())


def retain(broker_services: Broker, loop: Loop) -> None:
    loop.run(broker_services.infra.clock.refresh(broker_services.infra.db))
    loop.run(Partitions(broker_services.infra, broker_services.queues).run_once())
    loop.run(Cleaner(broker_services.infra, broker_services.dead_letters).run_once())


def leave_something(api: Api, database: SettableClock, eventually: Callable[..., Any]) -> Json:
    """Writes at least one row into every table from which retention deletes. Returns the completed job, which has a key."""
    api.dead()
    job = api.enqueue(key="once", unique={"key": "order-1", "for_seconds": 3600})
    api.complete(api.claim_one(worker_id="w"), result={"sum": 1})
    eventually(lambda: all(database.value(f"SELECT count(*) FROM {table}") for table in KEPT))
    return job


def contents(database: SettableClock) -> dict[str, int]:
    return {table: database.value(f"SELECT count(*) FROM {table}") for table in KEPT}


def shows_the_jump(api: Api, database: SettableClock) -> bool:
    """Whether the broker uses the new time; it reads the clock every second."""
    right: datetime = database.value("SELECT pg_catalog.now()")
    return when(api.claim(queues=["elsewhere"])["server_time"]) > right + timedelta(hours=1)


def test_retention_deletes_nothing_by_a_clock_that_jumped_ahead(
    api: Api, database: SettableClock, loop: Loop, eventually: Callable[..., Any]
) -> None:
    leave_something(api, database, eventually)
    with broker_without_services(database, loop) as earlier, broker_without_services(database, loop) as later:
        retain(earlier, loop)
        before, days = contents(database), partitions(database)
        database.jump("91 days")
        for broker_services in (earlier, later):  # one has seen the jump, the other starts after it
            retain(broker_services, loop)
    after = contents(database)
    assert {table: count for table, count in before.items() if after[table] < count} == {}
    assert days <= partitions(database)


def test_while_the_clock_is_ahead_keys_still_deduplicate_and_results_are_still_found(
    api: Api, database: SettableClock, eventually: Callable[..., Any]
) -> None:
    batch = api.batch({"payload": 1}, key="batch")
    api.complete(api.claim_one())
    done = leave_something(api, database, eventually)
    child_of_done: Json = {"depends_on": [done["id"]]}
    database.jump("91 days")
    eventually(lambda: shows_the_jump(api, database))
    unique = {"key": "order-1", "for_seconds": 3600}
    assert api.enqueue(key="once", unique=unique)["id"] == done["id"]
    assert api.batch({"payload": 1}, key="batch") == batch
    assert api.enqueue(unique=unique, status=200)["id"] == done["id"]
    assert api.job(done["id"])["result"] == {"sum": 1}
    assert done["id"] in {job["id"] for job in api.get("/jobs", state="completed")["items"]}
    assert api.enqueue(**child_of_done)["state"] == "ready"
    lag = re.search(r"^longshore_retention_lag_seconds (.+)$", api.http.get("/metrics").text, re.MULTILINE)
    assert lag is not None
    assert float(lag[1]) > 90 * 24 * 60 * 60


def test_a_settlement_is_repeatable_while_the_clock_is_ahead(
    api: Api, database: SettableClock, eventually: Callable[..., Any]
) -> None:
    api.enqueue()
    held = api.claim_one()
    api.complete(held)
    database.jump("91 days")
    eventually(lambda: shows_the_jump(api, database))
    assert api.complete(held)["status"] == "already_settled"
