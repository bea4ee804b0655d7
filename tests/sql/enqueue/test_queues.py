"""Queues of SQL enqueue: created on first use, restored after deletion, and never overfilled."""

from collections.abc import Iterator

import asyncpg
import pytest

from app.broker import Broker
from tests.api_client import Api
from tests.conftest import wait_until
from tests.database import Loop, TestDatabase, create_database
from tests.polls import Background
from tests.sql.enqueue.conftest import Session, shop_dsn

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'shop' AND wait_event_type = 'Lock'"
FULL = "53400"


@pytest.fixture
def database_without_broker(
    shared_database: TestDatabase, postgres: str, loop: Loop, request: pytest.FixtureRequest
) -> Iterator[TestDatabase]:
    """A database without a broker, for queues that would disturb other tests."""
    database = TestDatabase(create_database(postgres, loop, request.node.name[:60]), loop)
    yield database
    database.close()


def test_sql_enqueue_creates_an_unknown_queue_at_commit(shop: Session, api: Api) -> None:
    with shop.transaction():
        job_id = shop.enqueue()
        api.get(f"/queues/{api.queue}", status=404)
    assert api.get(f"/queues/{api.queue}")["lanes"] == 1
    assert api.claim_one()["id"] == job_id


def test_rolled_back_sql_enqueue_creates_no_queue(shop: Session, api: Api) -> None:
    with shop.transaction("ROLLBACK"):
        shop.enqueue()
    api.get(f"/queues/{api.queue}", status=404)
    assert api.enqueue()["queue"] == api.queue


def test_concurrent_transactions_create_queues_with_different_ids(
    shop: Session, other_session: Session, api: Api, db: TestDatabase, background: Background
) -> None:
    with shop.transaction():
        shop.enqueue()
        waiting = background.submit(other_session.enqueue, queue=f"{api.queue}-2")
        wait_until(lambda: db.value(WAITING) == 1)
    waiting.result(20)
    queue_ids = db.rows("SELECT DISTINCT id FROM queues WHERE name IN ($1, $2)", api.queue, f"{api.queue}-2")
    assert len(queue_ids) == 2


def test_concurrent_transactions_share_the_queue_they_create(
    shop: Session, other_session: Session, api: Api, db: TestDatabase, background: Background
) -> None:
    with shop.transaction():
        first = shop.enqueue()
        waiting = background.submit(other_session.enqueue)
        wait_until(lambda: db.value(WAITING) == 1)
    assert {job["id"] for job in api.claim(max_jobs=2)["jobs"]} >= {first}
    assert api.job(waiting.result(20))["queue"] == api.queue


def test_sql_enqueue_into_a_deleted_queue_is_delivered_and_restores_the_queue(
    shop: Session, api: Api, db: TestDatabase, broker_services: Broker, loop: Loop
) -> None:
    """Delivery does not need the queue to be restored: a maintenance service restores it later.

    So no transaction waits for the caller's commit.
    """
    api.configure(max_waiting=1, lanes=2)
    queue_id = db.value("SELECT id FROM queues WHERE name = $1", api.queue)
    api.delete(f"/queues/{api.queue}")
    with shop.transaction():
        ids = {shop.enqueue() for _ in range(3)}
        api.get(f"/queues/{api.queue}", status=404)
    assert {job["id"] for job in api.claim(max_jobs=10)["jobs"]} == ids
    loop.run(broker_services.queue_service.repair())
    wait_until(lambda: api.http.get(f"/queues/{api.queue}/stats").status_code == 200)
    assert db.value("SELECT id FROM queues WHERE name = $1", api.queue) == queue_id
    assert "max_waiting" not in api.get(f"/queues/{api.queue}")


def test_paused_queue_accepts_sql_jobs(shop: Session, api: Api) -> None:
    api.configure()
    api.pause()
    shop.enqueue()
    assert api.claim()["jobs"] == []
    api.post(f"/queues/{api.queue}/resume")
    assert len(api.claim()["jobs"]) == 1


def test_sql_enqueue_into_a_full_queue_is_rejected(shop: Session, api: Api) -> None:
    api.configure(max_waiting=3, lanes=4)
    api.enqueue()
    with shop.transaction():
        shop.enqueue(delay_seconds=60)
        shop.enqueue()
        error = shop.enqueue_error()
    assert (error.sqlstate, str(error)) == (FULL, f"{api.queue} has reached its limit of 3 waiting jobs")
    assert api.counts() == {"ready": 1}


def test_max_waiting_counts_sql_and_http_jobs(shop: Session, api: Api) -> None:
    api.configure(max_waiting=2)
    api.enqueue()
    shop.enqueue()
    assert shop.enqueue_error().sqlstate == FULL
    assert api.post("/jobs", {"queue": api.queue, "job_type": "test"}, status=429)["code"] == "queue_full"
    api.claim_one()
    shop.enqueue()
    assert shop.enqueue_error().sqlstate == FULL


def test_duplicate_by_sql_is_accepted_by_a_full_queue(shop: Session, api: Api) -> None:
    api.configure(max_waiting=1)
    job_id = shop.enqueue(unique_key="k")
    assert shop.enqueue(unique_key="k") == job_id


def is_accepted(session: Session) -> bool:
    try:
        session.enqueue()
    except asyncpg.ConfigurationLimitExceededError:
        return False
    return True


def test_concurrent_sql_and_http_enqueues_do_not_exceed_max_waiting(
    shop: Session, other_session: Session, api: Api, background: Background
) -> None:
    api.configure(max_waiting=7)

    def by_sql(session: Session) -> int:
        return sum(is_accepted(session) for _ in range(4))

    def over_http() -> int:
        return sum(
            api.http.post("/jobs", json={"queue": api.queue, "job_type": "test"}).status_code == 201 for _ in range(4)
        )

    assert (
        sum(background.together(lambda: by_sql(shop), lambda: by_sql(other_session), over_http, lambda: over_http()))
        == 7
    )
    assert api.counts() == {"ready": 7}


def test_sql_enqueue_does_not_exceed_the_maximum_number_of_queues(database_without_broker: TestDatabase) -> None:
    database_without_broker.execute(
        "INSERT INTO queues (id, name) SELECT n, 'queue-' || n FROM generate_series(1, 9999) AS n"
    )
    shop = Session(shop_dsn(database_without_broker.dsn), database_without_broker.loop, "the-last-one")
    shop.enqueue()
    error = shop.enqueue_error(queue="one-too-many")
    assert (error.sqlstate, str(error)) == (FULL, "there are 10000 queues already")
    shop.enqueue()
    shop.close()


def test_sql_enqueue_is_rejected_when_all_queue_ids_are_used(database_without_broker: TestDatabase) -> None:
    database_without_broker.execute("INSERT INTO queues (id, name) VALUES (65535, 'the-last-one')")
    shop = Session(shop_dsn(database_without_broker.dsn), database_without_broker.loop, "the-last-one")
    shop.enqueue()
    assert shop.enqueue_error(queue="one-too-many").sqlstate == FULL
    shop.close()
