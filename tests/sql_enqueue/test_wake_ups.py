"""Nobody tells a broker of a job that came by SQL: its regular looks find it, whatever the job waits for. Here without any NOTIFY."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app.settings import Settings
from tests.api import Api, when
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import QUICK, wait_until
from tests.database import Loop, TestDatabase, create_database
from tests.polls import Background, parked
from tests.sql_enqueue.conftest import Session, as_shop

Enqueue = Callable[[Session, TestDatabase], str]


@pytest.fixture(scope="module")
def silent_database(shared: TestDatabase, postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, "silent"), loop)
    yield database
    database.close()


@pytest.fixture(scope="module")
def silent_broker(silent_database: TestDatabase) -> Iterator[RunningBroker]:
    """Alone on its database, deaf and dumb; it looks as often as one that nobody has configured."""
    seconds = {name: Settings.model_fields[name].default for name in ("poll_seconds", "sweep_seconds")}
    with threaded_broker(QUICK.model_copy(update={"notify": False, **seconds}), silent_database.dsn) as broker:
        yield broker


@pytest.fixture
def silent(silent_broker: RunningBroker, silent_database: TestDatabase, queue: str) -> Api:
    silent_database.empty()
    return Api(silent_broker.http, queue)


@pytest.fixture
def producer(silent_database: TestDatabase, queue: str) -> Iterator[Session]:
    session = Session(as_shop(silent_database.dsn), silent_database.loop, queue)
    yield session
    session.close()


def test_they_look_at_least_once_a_second() -> None:
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
        ({}, lambda session, db: session.enqueue(run_at=when(db.instant(0.2)))),
    ],
    ids=["ready", "lanes", "fair", "in a group", "limited", "rated", "due later"],
)
def test_a_parked_poll_gets_the_job(
    silent: Api,
    producer: Session,
    silent_database: TestDatabase,
    background: Background,
    config: dict[str, Any],
    enqueue: Enqueue,
) -> None:
    silent.configure(**config)
    poll = background.claim(silent)
    wait_until(lambda: parked(silent.http) == 1)
    job_id = enqueue(producer, silent_database)
    assert [job["id"] for job in poll.result(30)["jobs"]] == [job_id]


def test_a_poll_that_was_there_before_the_queue_gets_the_job(
    silent: Api, producer: Session, background: Background
) -> None:
    poll = background.claim(silent)
    wait_until(lambda: parked(silent.http) == 1)
    job_id = producer.enqueue()
    assert [job["id"] for job in poll.result(30)["jobs"]] == [job_id]


def test_a_poll_of_a_deleted_queue_gets_the_job(silent: Api, producer: Session, background: Background) -> None:
    silent.configure()
    silent.delete(f"/queues/{silent.queue}")
    poll = background.claim(silent)
    wait_until(lambda: parked(silent.http) == 1)
    job_id = producer.enqueue()
    assert [job["id"] for job in poll.result(30)["jobs"]] == [job_id]


def test_a_poll_is_woken_by_the_commit_and_not_before(silent: Api, producer: Session, background: Background) -> None:
    silent.configure()
    poll = background.claim(silent)
    wait_until(lambda: parked(silent.http) == 1)
    with producer.transaction():
        job_id = producer.enqueue()
        with silent.http.stream("POST", "/claim", json={"queues": [silent.queue]}) as response:
            assert b'"jobs":[]' in response.read()
        assert not poll.done()
    assert [job["id"] for job in poll.result(30)["jobs"]] == [job_id]


def test_many_jobs_wake_many_polls(silent: Api, producer: Session, background: Background) -> None:
    silent.configure()
    polls = background.claims(5, silent)
    wait_until(lambda: parked(silent.http) == 5)
    with producer.transaction():
        ids = {producer.enqueue() for _ in range(5)}
    assert {job["id"] for poll in polls for job in poll.result(30)["jobs"]} == ids
