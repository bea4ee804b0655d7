"""What the broker reports about a Postgres that may lose jobs, when it refuses one, and the ages
that it measures. See docs/reliability/rules.md#r19 and docs/reliability/faults.md#c10.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from app.db.server_checks import ServerChecks
from app.errors import DatabaseUnavailable
from tests.api_client import Api
from tests.broker import threaded_broker
from tests.database import Loop, TestDatabase
from tests.faults.db.test_write_outcome import outcome
from tests.faults.failover.server import Server
from tests.faults.postgres.conftest import StartServer, open_database, settings_with
from tests.polls import metric_value

DURABLE = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}


def durability_detail(api: Api, status: int = 200) -> str:
    detail: str = next(
        check["detail"] for check in api.get("/readyz", status=status)["checks"] if check["name"] == "durability"
    )
    return detail


@contextmanager
def broker_on(server: Server, **settings: object) -> Iterator[Api]:
    with threaded_broker(settings_with(notify=False, **settings), server.dsn) as broker:
        yield Api(broker.http, "q")


def test_durable_server_is_reported_as_durable(start: StartServer) -> None:
    with broker_on(start(**DURABLE), require_durable=True) as api:
        assert durability_detail(api) == "the settings keep acknowledged writes"
        api.enqueue()


def test_server_that_may_lose_jobs_is_degraded_or_refused(start: StartServer) -> None:
    server = start(**DURABLE | {"fsync": "off"})
    with broker_on(server) as api:
        assert durability_detail(api) == "degraded: fsync is off: a power cut loses jobs"
        api.enqueue()
    with broker_on(server, require_durable=True) as api:
        assert "fsync is off" in durability_detail(api, status=503)
        assert outcome(api.http.post("/jobs", json={"queue": "q", "job_type": "test"})) == "not_done"


def test_server_that_becomes_unsafe_is_refused_after_the_next_check(start: StartServer, loop: Loop) -> None:
    server = start(fsync="on")
    with open_database(server.dsn, loop, require_durable=True) as db:
        checks = ServerChecks(db, settings_with(require_durable=True), db._metrics)
        loop.run(checks.run_once())
        assert loop.run(db.value("SELECT 1")) == 1
        server.open(loop).execute("ALTER DATABASE postgres SET synchronous_commit = 'off'")
        loop.run(db.rows("SET synchronous_commit = 'off'"))  # as a reload of the configuration does in open sessions
        loop.run(checks.run_once())
        with pytest.raises(DatabaseUnavailable, match="not durable: synchronous_commit is off"):
            loop.run(db.value("SELECT 1"))


def test_too_many_connections_for_the_server_are_reported(
    start: StartServer, loop: Loop, eventually: Callable[..., Any]
) -> None:
    with open_database(start(fsync="on").dsn, loop) as db:
        checks = ServerChecks(db, settings_with(pool_size=100), db._metrics)
        eventually(
            lambda: loop.run(run_checks(checks)).startswith(
                "degraded: 1 broker processes may open 102 connections each"
            )
        )


async def run_checks(checks: ServerChecks) -> str:
    await checks.run_once()
    return await checks.to_response()


def test_ages_of_the_database_and_of_its_oldest_snapshot_are_measured(database: TestDatabase, loop: Loop) -> None:
    with open_database(database.dsn, loop) as db:
        checks = ServerChecks(db, settings_with(), db._metrics)
        loop.run(checks.run_once())
        assert metric(db, "database_frozen_xid_age") > 0
        with database.uncommitted("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; CREATE TABLE held (id int)"):
            for _ in range(5):
                database.value("SELECT pg_current_xact_id()::text")
            loop.run(checks.run_once())
            assert metric(db, "database_snapshot_age") >= 5


def metric(db: Any, name: str) -> float:
    value: float | None = db._metrics.registry.get_sample_value(f"longshore_{name}")
    assert value is not None
    return value


def test_running_broker_measures_the_age_of_the_database(api: Api, eventually: Callable[..., Any]) -> None:
    eventually(lambda: metric_value(api.http, "database_frozen_xid_age") > 0)
