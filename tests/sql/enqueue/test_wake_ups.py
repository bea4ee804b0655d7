"""SQL enqueue sends no wake-up: the periodic scans of a broker find the job.

The broker of these tests runs without NOTIFY.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app.settings import Settings
from tests.api_client import Api, parse_time
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import TEST_SETTINGS, wait_until
from tests.database import Loop, TestDatabase, create_database
from tests.polls import Background, parked_polls
from tests.sql.enqueue.conftest import Session, shop_dsn

pytestmark = pytest.mark.slow

Enqueue = Callable[[Session, TestDatabase], str]


@pytest.fixture(scope="module")
def database_without_notify(shared_database: TestDatabase, postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, "without_notify"), loop)
    yield database
    database.close()


@pytest.fixture(scope="module")
def broker_without_notify(database_without_notify: TestDatabase) -> Iterator[RunningBroker]:
    """The only broker of its database, without NOTIFY and with the default scan intervals."""
    seconds = {name: Settings.model_fields[name].default for name in ("poll_seconds", "sweep_seconds")}
    with threaded_broker(
        TEST_SETTINGS.model_copy(update={"notify": False, **seconds}), database_without_notify.dsn
    ) as broker:
        yield broker


@pytest.fixture
def api_without_notify(broker_without_notify: RunningBroker, database_without_notify: TestDatabase, queue: str) -> Api:
    database_without_notify.empty()
    return Api(broker_without_notify.http, queue)


@pytest.fixture
def producer(database_without_notify: TestDatabase, queue: str) -> Iterator[Session]:
    session = Session(shop_dsn(database_without_notify.dsn), database_without_notify.loop, queue)
    yield session
    session.close()


def test_scan_intervals_are_at_most_one_second_by_default() -> None:
    assert Settings.model_fields["poll_seconds"].default <= 1
    assert Settings.model_fields["sweep_seconds"].default <= 1


def chain(session: Session, _: TestDatabase) -> str:
    return session.enqueue(depends_on=[session.enqueue(queue=f"{session.queue}-2")])


@pytest.mark.parametrize(
    ("config", "enqueue"),
    [
        ({}, lambda session, _: session.enqueue()),
        ({"lanes": 16}, lambda session, _: session.enqueue()),
        ({"fair": True}, lambda session, _: session.enqueue()),
        ({"max_running_per_group": 1}, lambda session, _: session.enqueue(group_key="g")),
        ({"max_running": 1}, lambda session, _: session.enqueue()),
        ({"rate": {"limit": 10, "per_seconds": 1}}, lambda session, _: session.enqueue()),
        ({}, lambda session, db: session.enqueue(run_at=parse_time(db.instant(0.2)))),
    ],
    ids=["ready", "lanes", "fair", "in a group", "limited", "rate-limited", "due later"],
)
def test_waiting_poller_gets_a_sql_job_without_notifications(
    api_without_notify: Api,
    producer: Session,
    database_without_notify: TestDatabase,
    background: Background,
    config: dict[str, Any],
    enqueue: Enqueue,
) -> None:
    api_without_notify.configure(**config)
    poller = background.claim(api_without_notify)
    wait_until(lambda: parked_polls(api_without_notify.http) == 1)
    job_id = enqueue(producer, database_without_notify)
    assert [job["id"] for job in poller.result(30)["jobs"]] == [job_id]


def test_poller_older_than_the_queue_gets_a_sql_job(
    api_without_notify: Api, producer: Session, background: Background
) -> None:
    poller = background.claim(api_without_notify)
    wait_until(lambda: parked_polls(api_without_notify.http) == 1)
    job_id = producer.enqueue()
    assert [job["id"] for job in poller.result(30)["jobs"]] == [job_id]


def test_poller_of_a_deleted_queue_gets_a_sql_job(
    api_without_notify: Api, producer: Session, background: Background
) -> None:
    api_without_notify.configure()
    api_without_notify.delete(f"/queues/{api_without_notify.queue}")
    poller = background.claim(api_without_notify)
    wait_until(lambda: parked_polls(api_without_notify.http) == 1)
    job_id = producer.enqueue()
    assert [job["id"] for job in poller.result(30)["jobs"]] == [job_id]


def test_poller_gets_a_sql_job_after_the_commit_and_not_earlier(
    api_without_notify: Api, producer: Session, background: Background
) -> None:
    api_without_notify.configure()
    poller = background.claim(api_without_notify)
    wait_until(lambda: parked_polls(api_without_notify.http) == 1)
    with producer.transaction():
        job_id = producer.enqueue()
        with api_without_notify.http.stream("POST", "/claim", json={"queues": [api_without_notify.queue]}) as response:
            assert b'"jobs":[]' in response.read()
        assert not poller.done()
    assert [job["id"] for job in poller.result(30)["jobs"]] == [job_id]


def test_many_sql_jobs_wake_many_pollers(api_without_notify: Api, producer: Session, background: Background) -> None:
    api_without_notify.configure()
    pollers = background.claims(5, api_without_notify)
    wait_until(lambda: parked_polls(api_without_notify.http) == 5)
    with producer.transaction():
        ids = {producer.enqueue() for _ in range(5)}
    assert {job["id"] for poller in pollers for job in poller.result(30)["jobs"]} == ids
