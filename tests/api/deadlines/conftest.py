"""A broker without periodic scans, and scans that a test runs at an instant of its choice.

A test can read rows before a scan changes them.
"""

from collections.abc import Callable, Iterator
from datetime import datetime

import pytest

from app.broker import Broker, build_broker
from app.db.clock import DatabaseClock
from app.maintenance.lease_rescuer import LeaseRescuer
from app.maintenance.start_deadline import StartDeadlineEnforcer
from tests.api_client import Api, Json
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import TEST_SETTINGS, wait_until
from tests.database import Loop, TestDatabase, create_database

RunScansAt = Callable[[datetime], None]


def backdate_run(db: TestDatabase, claimed: Json, seconds: float) -> None:
    """Moves the start, the lease and the deadline of a run into the past."""
    db.execute(
        """
        UPDATE jobs
        SET started_at = started_at - make_interval(secs => $2),
            lease_expires_at = lease_expires_at - make_interval(secs => $2),
            deadline_at = deadline_at - make_interval(secs => $2)
        WHERE id = $1
        """,
        claimed["id"],
        seconds,
    )
    db.make_checks_due()


def backdate_start_deadline(db: TestDatabase, job: Json, seconds: float = 3600) -> None:
    """Moves the start deadline of a job into the past."""
    db.execute("UPDATE jobs SET expires_at = expires_at - make_interval(secs => $2) WHERE id = $1", job["id"], seconds)


def run_past_timeout(api: Api, db: TestDatabase, **fields: object) -> Json:
    """Claims a job with a timeout below its lease, and waits until the timeout ends the run."""
    claimed = api.claim_one(wait_seconds=20, **fields)
    backdate_run(db, claimed, claimed["lease_seconds"] + 2)
    wait_until(lambda: api.job(claimed["id"])["state"] != "running")
    return claimed


@pytest.fixture(scope="module")
def database_without_scans(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, "without_scans"), loop)
    yield database
    database.close()


@pytest.fixture(scope="module")
def broker_without_scans(database_without_scans: TestDatabase) -> Iterator[RunningBroker]:
    with threaded_broker(
        TEST_SETTINGS.model_copy(update={"sweep_seconds": 3600.0}), database_without_scans.dsn
    ) as broker:
        yield broker


@pytest.fixture
def db_without_scans(database_without_scans: TestDatabase) -> TestDatabase:
    database_without_scans.empty()
    return database_without_scans


@pytest.fixture
def api_without_scans(broker_without_scans: RunningBroker, db_without_scans: TestDatabase, queue: str) -> Api:
    return Api(broker_without_scans.http, queue)


class StoppedClock(DatabaseClock):
    """Shows one instant until the test sets another."""

    instant: datetime

    def now(self) -> datetime:
        return self.instant


@pytest.fixture
def run_scans_at(db_without_scans: TestDatabase, loop: Loop, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunScansAt]:
    """Runs the scans of a broker as if it were that instant."""
    monkeypatch.setattr("app.broker.DatabaseClock", StoppedClock)
    broker_services = build_broker(TEST_SETTINGS, db_without_scans.dsn)
    loop.run(broker_services.infra.db.open())
    yield lambda instant: _run_scans_at(broker_services, loop, instant)
    loop.run(broker_services.infra.db.close())


def _run_scans_at(broker_services: Broker, loop: Loop, instant: datetime) -> None:
    StoppedClock.instant = instant
    loop.run(LeaseRescuer(infra=broker_services.infra, lease_ender=broker_services.lease_ender).run_once())
    loop.run(
        StartDeadlineEnforcer(
            infra=broker_services.infra, queues=broker_services.queues, events=broker_services.events
        ).run_once()
    )
