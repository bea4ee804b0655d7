"""A broker that does not sweep, so that a test can look at what nobody has swept yet; and sweeps at the time that a test says."""

from collections.abc import Callable, Iterator
from datetime import datetime

import pytest

from app.broker import Broker, build_broker
from app.maintenance.chores import LeaseRescuer, StartDeadlineEnforcer
from tests.api import Api, Json
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import QUICK, wait_until
from tests.database import Loop, TestDatabase, create_database

SweepAt = Callable[[datetime], None]


def begun_earlier(db: TestDatabase, held: Json, seconds: float) -> None:
    """As if the run had begun so much earlier: its lease and its deadline are nearer, or past."""
    db.execute(
        """
        UPDATE jobs
        SET started_at = started_at - make_interval(secs => $2), lease_expires_at = lease_expires_at - make_interval(secs => $2),
            deadline_at = deadline_at - make_interval(secs => $2)
        WHERE id = $1
        """,
        held["id"],
        seconds,
    )


def wanted_earlier(db: TestDatabase, job: Json, seconds: float = 3600) -> None:
    """As if the job should have been begun so much earlier."""
    db.execute("UPDATE jobs SET expires_at = expires_at - make_interval(secs => $2) WHERE id = $1", job["id"], seconds)


def run_too_long(api: Api, db: TestDatabase, **fields: object) -> Json:
    """Claims a job whose timeout is shorter than its lease, and comes back when its time has run out."""
    held = api.claim_one(wait_seconds=20, **fields)
    begun_earlier(db, held, held["lease_seconds"] + 2)
    wait_until(lambda: api.job(held["id"])["state"] != "running")
    return held


@pytest.fixture(scope="module")
def drowsy_database(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, "drowsy"), loop)
    yield database
    database.close()


@pytest.fixture(scope="module")
def drowsy_broker(drowsy_database: TestDatabase) -> Iterator[RunningBroker]:
    with threaded_broker(QUICK.model_copy(update={"sweep_seconds": 3600.0}), drowsy_database.dsn) as broker:
        yield broker


@pytest.fixture
def drowsy_db(drowsy_database: TestDatabase) -> TestDatabase:
    drowsy_database.empty()
    return drowsy_database


@pytest.fixture
def drowsy(drowsy_broker: RunningBroker, drowsy_db: TestDatabase, queue: str) -> Api:
    return Api(drowsy_broker.http, queue)


@pytest.fixture
def sweep_at(drowsy_db: TestDatabase, loop: Loop, monkeypatch: pytest.MonkeyPatch) -> Iterator[SweepAt]:
    """What the sweeps of a broker do at that instant."""
    broker_services = build_broker(QUICK, drowsy_db.dsn)
    loop.run(broker_services.infra.db.open())
    yield lambda instant: _sweep_at(broker_services, loop, monkeypatch, instant)
    loop.run(broker_services.infra.db.close())


def _sweep_at(broker_services: Broker, loop: Loop, monkeypatch: pytest.MonkeyPatch, instant: datetime) -> None:
    monkeypatch.setattr(broker_services.infra.clock, "now", lambda: instant)
    loop.run(LeaseRescuer(broker_services.infra, broker_services.settlements).run_once())
    loop.run(StartDeadlineEnforcer(broker_services.infra, broker_services.queues, broker_services.signals).run_once())
