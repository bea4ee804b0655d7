"""A jump of the database clock deletes nothing and duplicates nothing."""

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest

from app.broker import Broker, build_broker
from app.maintenance.cleaner import Cleaner
from app.maintenance.partitions import Partitions
from tests.api.maintenance.conftest import partitions
from tests.api_client import Api, Json, parse_time
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import Loop
from tests.settable_clock import SettableClock
from tests.sql.enqueue.conftest import Session

_numbers = itertools.count(1)
RETAINED_TABLES = (
    "finished_jobs",
    "dead_letters",
    "deduplication_keys",
    "workers",
    "poll_history",
    "stat_rates",
    "stat_durations",
)


@pytest.fixture
def database(postgres: str, loop: Loop) -> Iterator[SettableClock]:
    """A new database for each test, without other brokers and without partitions of other tests."""
    database = SettableClock.create(postgres, loop, f"settable_{next(_numbers)}")
    yield database
    database.close()


@pytest.fixture
def api(database: SettableClock) -> Iterator[Api]:
    with threaded_broker(TEST_SETTINGS, database.dsn) as broker:
        yield Api(broker.http, "jumps")


@pytest.fixture
def session(api: Api, database: SettableClock, loop: Loop) -> Iterator[Session]:
    """A session that enqueues in SQL, by the settable clock.

    The search_path of the function puts pg_catalog first; here it does not.
    """
    database.execute("ALTER FUNCTION longshore_enqueue_v1 SET search_path = public, pg_catalog, pg_temp")
    session = Session(database.dsn, loop, api.queue)
    yield session
    session.close()


@contextmanager
def broker_without_services(database: SettableClock, loop: Loop) -> Iterator[Broker]:
    broker_services = build_broker(TEST_SETTINGS, database.dsn)
    loop.run(broker_services.infra.db.open())
    try:
        yield broker_services
    finally:
        loop.run(broker_services.infra.db.close())


def run_retention(broker_services: Broker, loop: Loop) -> None:
    loop.run(broker_services.infra.clock.refresh(broker_services.infra.db))
    loop.run(Partitions(infra=broker_services.infra, queues=broker_services.queues).run_once())
    loop.run(Cleaner(infra=broker_services.infra, dead_letters=broker_services.dead_letters).run_once())


def fill_tables(api: Api, database: SettableClock, eventually: Callable[..., Any]) -> Json:
    """Writes at least one row into every table from which retention deletes.

    Returns the completed job, which has an idempotency key and a unique key.
    """
    api.dead_letter()
    job = api.enqueue(key="once", unique={"key": "order-1", "for_seconds": 3600})
    api.complete(api.claim_one(worker_id="w"), result={"sum": 1})
    eventually(lambda: all(database.value(f"SELECT count(*) FROM {table}") for table in RETAINED_TABLES))
    return job


def row_counts(database: SettableClock) -> dict[str, int]:
    return {table: database.value(f"SELECT count(*) FROM {table}") for table in RETAINED_TABLES}


def uses_new_time(api: Api, database: SettableClock) -> bool:
    """Returns whether the broker uses the new time; it reads the clock every second."""
    real_time: datetime = database.value("SELECT pg_catalog.now()")
    return parse_time(api.claim(queues=["elsewhere"])["server_time"]) > real_time + timedelta(hours=1)


def test_retention_deletes_nothing_after_the_clock_jumped_ahead(
    api: Api, database: SettableClock, loop: Loop, eventually: Callable[..., Any]
) -> None:
    fill_tables(api, database, eventually)
    with broker_without_services(database, loop) as earlier, broker_without_services(database, loop) as later:
        run_retention(earlier, loop)
        before, days = row_counts(database), partitions(database)
        database.jump("91 days")
        for broker_services in (earlier, later):  # one has seen the jump, the other starts after it
            run_retention(broker_services, loop)
    after = row_counts(database)
    assert {table: count for table, count in before.items() if after[table] < count} == {}
    assert days <= partitions(database)


@pytest.mark.slow
def test_keys_and_results_are_kept_while_the_clock_is_ahead(
    api: Api, database: SettableClock, eventually: Callable[..., Any]
) -> None:
    batch = api.batch({"payload": 1}, key="batch")
    api.complete(api.claim_one())
    completed_job = fill_tables(api, database, eventually)
    child: Json = {"depends_on": [completed_job["id"]]}
    database.jump("91 days")
    eventually(lambda: uses_new_time(api, database))
    unique = {"key": "order-1", "for_seconds": 3600}
    assert api.enqueue(key="once", unique=unique)["id"] == completed_job["id"]
    assert api.batch({"payload": 1}, key="batch") == batch
    assert api.enqueue(unique=unique, status=200)["id"] == completed_job["id"]
    assert api.job(completed_job["id"])["result"] == {"sum": 1}
    assert completed_job["id"] in {job["id"] for job in api.get("/jobs", state="completed")["items"]}
    assert api.enqueue(**child)["state"] == "ready"
    lag = re.search(r"^longshore_retention_lag_seconds (.+)$", api.http.get("/metrics").text, re.MULTILINE)
    assert lag is not None
    assert float(lag[1]) > 90 * 24 * 60 * 60


def test_settlement_can_be_repeated_while_the_clock_is_ahead(
    api: Api, database: SettableClock, eventually: Callable[..., Any]
) -> None:
    api.enqueue()
    held = api.claim_one()
    api.complete(held)
    database.jump("91 days")
    eventually(lambda: uses_new_time(api, database))
    assert api.complete(held)["status"] == "already_settled"


def lagging_clocks(database: SettableClock) -> set[str]:
    return {row["clock"] for row in database.rows("SELECT clock FROM clock_lags WHERE seconds > 90 * 24 * 60 * 60")}


def test_sql_enqueue_finds_keys_and_parents_while_the_clock_is_ahead(
    api: Api, session: Session, database: SettableClock, eventually: Callable[..., Any]
) -> None:
    parent = fill_tables(api, database, eventually)["id"]
    keys = {"unique_key": "order-2", "unique_for_seconds": 3600}
    waiting = session.enqueue(**keys)
    database.jump("91 days")
    eventually(lambda: lagging_clocks(database) == {"retention", "unique_windows"})
    assert session.enqueue(**keys) == waiting
    assert session.enqueue(unique_key="order-1", unique_for_seconds=3600) == parent
    assert api.job(session.enqueue(depends_on=[parent]))["state"] == "ready"
    # The control: without the stored lag the function follows the jump.
    database.execute("DELETE FROM clock_lags")
    assert session.enqueue(**keys) != waiting
    assert "there is no job" in str(session.enqueue_error(depends_on=[parent]))


def test_stored_lag_of_a_clock_ends_when_the_clock_jumps_back(
    api: Api, session: Session, database: SettableClock, eventually: Callable[..., Any]
) -> None:
    database.jump("91 days")
    eventually(lambda: "unique_windows" in lagging_clocks(database))
    lagging = database.value("SELECT longshore_lagging_time('unique_windows', public.clock_timestamp())")
    assert lagging < database.value("SELECT pg_catalog.now()") + timedelta(minutes=1)
    database.jump("0")
    now = database.value("SELECT pg_catalog.now()")
    assert database.value("SELECT longshore_lagging_time('unique_windows', $1)", now) == now
    eventually(lambda: database.value("SELECT count(*) FROM clock_lags") == 0)
