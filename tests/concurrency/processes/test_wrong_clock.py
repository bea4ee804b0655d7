"""Brokers whose clock is two hours ahead or behind: only the database's clock counts."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api_client import Api
from tests.broker import broker_process, threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import Loop, TestDatabase, create_database

WRONG_CLOCK = """
import time
right = time.time
time.time = lambda: right() + {seconds}
"""

# A database that answers everything but the time, until the row is deleted.
NO_TIME = """
CREATE TABLE no_time AS SELECT true;
CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM no_time) THEN
        RAISE EXCEPTION 'not yet' USING ERRCODE = 'cannot_connect_now';
    END IF;
    RETURN pg_catalog.clock_timestamp();
END
$$;
ALTER DATABASE wrong_clock SET search_path = public, pg_catalog;
"""


@pytest.fixture
def database(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    """A database without another broker, whose scans would use the correct time."""
    database = TestDatabase(create_database(postgres, loop, "wrong_clock"), loop)
    yield database
    database.close()


def test_broker_whose_clock_is_ahead_expires_no_lease_early_and_dates_no_job_in_the_future(
    database: TestDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    with threaded_broker(TEST_SETTINGS, database.dsn) as broker:
        api = Api(broker.http, "clocks")
        api.enqueue_many(2)
        held, lost = api.claim(max_jobs=2, lease_seconds=3600)["jobs"]
    database.age(lost["id"], 3601)
    database.execute(NO_TIME)
    (tmp_path / "sitecustomize.py").write_text(WRONG_CLOCK.format(seconds=7200))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with broker_process(database.dsn, sweep_seconds="0.05", log_level="error") as (ahead, _):
        api = Api(ahead.http, "clocks")
        problem = api.post("/jobs", {"queue": "clocks", "job_type": "test"}, status=503)
        assert problem["outcome"] == "not_done"
        database.execute("DELETE FROM no_time")
        eventually(lambda: api.job(lost["id"])["state"] == "ready")
        assert api.job(held["id"])["state"] == "running"
        assert api.enqueue()["created_at"] < database.instant(3600)


def test_unique_key_expires_on_time_though_the_clock_of_the_broker_is_behind(
    database: TestDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(WRONG_CLOCK.format(seconds=-7200))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with broker_process(database.dsn, log_level="error") as (behind, _):
        api = Api(behind.http, "windows")
        unique = {"key": "order-1", "for_seconds": 600}
        first = api.enqueue(unique=unique)
        assert api.enqueue(unique=unique, status=200)["id"] == first["id"]
        database.execute("UPDATE deduplication_keys SET expires_at = expires_at - interval '601 seconds'")
        assert api.enqueue(unique=unique)["id"] != first["id"]
