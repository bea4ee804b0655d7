"""The queue of a job that comes by SQL: made if it is not there, brought back if it was deleted, and never overfilled."""

from collections.abc import Iterator

import asyncpg
import pytest

from app.broker import Broker
from tests.api import Api
from tests.conftest import wait_until
from tests.database import Loop, TestDatabase, create_database
from tests.polls import Background
from tests.sql_enqueue.conftest import Session, as_shop

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'shop' AND wait_event_type = 'Lock'"
FULL = "53400"


@pytest.fixture
def lonely(shared: TestDatabase, postgres: str, loop: Loop, request: pytest.FixtureRequest) -> Iterator[TestDatabase]:
    """A database without brokers, for queues that would be in the way of others."""
    database = TestDatabase(create_database(postgres, loop, request.node.name[:60]), loop)
    yield database
    database.close()


def test_an_unknown_queue_comes_into_being_with_the_commit(shop: Session, api: Api) -> None:
    with shop.transaction():
        job_id = shop.enqueue()
        api.get(f"/queues/{api.queue}", status=404)
    assert api.get(f"/queues/{api.queue}")["lanes"] == 1
    assert api.claim_one()["id"] == job_id


def test_with_a_rollback_it_does_not(shop: Session, api: Api) -> None:
    with shop.transaction("ROLLBACK"):
        shop.enqueue()
    api.get(f"/queues/{api.queue}", status=404)
    assert api.enqueue()["queue"] == api.queue


def test_two_that_make_queues_at_once_get_different_numbers(
    shop: Session, rival: Session, api: Api, db: TestDatabase, background: Background
) -> None:
    with shop.transaction():
        shop.enqueue()
        waits = background.submit(rival.enqueue, queue=f"{api.queue}-2")
        wait_until(lambda: db.value(WAITING) == 1)
    waits.result(20)
    numbers = db.rows("SELECT DISTINCT id FROM queues WHERE name IN ($1, $2)", api.queue, f"{api.queue}-2")
    assert len(numbers) == 2


def test_two_that_make_the_same_queue_share_it(
    shop: Session, rival: Session, api: Api, db: TestDatabase, background: Background
) -> None:
    with shop.transaction():
        first = shop.enqueue()
        waits = background.submit(rival.enqueue)
        wait_until(lambda: db.value(WAITING) == 1)
    assert {job["id"] for job in api.claim(max_jobs=2)["jobs"]} >= {first}
    assert api.job(waits.result(20))["queue"] == api.queue


def test_a_deleted_queue_hands_out_and_comes_back(
    shop: Session, api: Api, db: TestDatabase, broker_services: Broker, loop: Loop
) -> None:
    """It need not be back for that: a chore looks after it, and nobody waits for the caller's commit."""
    api.configure(max_waiting=1, lanes=2)
    number = db.value("SELECT id FROM queues WHERE name = $1", api.queue)
    api.delete(f"/queues/{api.queue}")
    with shop.transaction():
        ids = {shop.enqueue() for _ in range(3)}
        api.get(f"/queues/{api.queue}", status=404)
    assert {job["id"] for job in api.claim(max_jobs=10)["jobs"]} == ids
    loop.run(broker_services.queue_service.revive_used())
    wait_until(lambda: api.http.get(f"/queues/{api.queue}/stats").status_code == 200)
    assert db.value("SELECT id FROM queues WHERE name = $1", api.queue) == number
    assert "max_waiting" not in api.get(f"/queues/{api.queue}")


def test_a_paused_queue_takes_jobs(shop: Session, api: Api) -> None:
    api.configure()
    api.pause()
    shop.enqueue()
    assert api.claim()["jobs"] == []
    api.post(f"/queues/{api.queue}/resume")
    assert len(api.claim()["jobs"]) == 1


def test_a_full_queue_takes_no_more(shop: Session, api: Api) -> None:
    api.configure(max_waiting=3, lanes=4)
    api.enqueue()
    with shop.transaction():
        shop.enqueue(delay_seconds=60)
        shop.enqueue()
        refused = shop.refused()
    assert (refused.sqlstate, str(refused)) == (FULL, f"3 jobs may wait in {api.queue}, and as many do")
    assert api.counts() == {"ready": 1}


def test_it_is_full_for_both_ways(shop: Session, api: Api) -> None:
    api.configure(max_waiting=2)
    api.enqueue()
    shop.enqueue()
    assert shop.refused().sqlstate == FULL
    assert api.post("/jobs", {"queue": api.queue, "job_type": "test"}, status=429)["code"] == "queue_full"
    api.claim_one()
    shop.enqueue()
    assert shop.refused().sqlstate == FULL


def test_a_duplicate_needs_no_room(shop: Session, api: Api) -> None:
    api.configure(max_waiting=1)
    job_id = shop.enqueue(unique_key="k")
    assert shop.enqueue(unique_key="k") == job_id


def took(session: Session) -> bool:
    try:
        session.enqueue()
    except asyncpg.ConfigurationLimitExceededError:
        return False
    return True


def test_many_at_once_do_not_overfill_it(shop: Session, rival: Session, api: Api, background: Background) -> None:
    api.configure(max_waiting=7)

    def by_sql(session: Session) -> int:
        return sum(took(session) for _ in range(4))

    def over_http() -> int:
        return sum(
            api.http.post("/jobs", json={"queue": api.queue, "job_type": "test"}).status_code == 201 for _ in range(4)
        )

    assert sum(background.together(lambda: by_sql(shop), lambda: by_sql(rival), over_http, lambda: over_http())) == 7
    assert api.counts() == {"ready": 7}


def test_there_are_no_more_queues_than_allowed(lonely: TestDatabase) -> None:
    lonely.execute("INSERT INTO queues (id, name) SELECT n, 'queue-' || n FROM generate_series(1, 9999) AS n")
    shop = Session(as_shop(lonely.dsn), lonely.loop, "the-last-one")
    shop.enqueue()
    refused = shop.refused(queue="one-too-many")
    assert (refused.sqlstate, str(refused)) == (FULL, "there are 10000 queues already")
    shop.enqueue()
    shop.close()


def test_when_all_numbers_are_used_up_no_queue_is_made(lonely: TestDatabase) -> None:
    lonely.execute("INSERT INTO queues (id, name) VALUES (65535, 'the-last-one')")
    shop = Session(as_shop(lonely.dsn), lonely.loop, "the-last-one")
    shop.enqueue()
    assert shop.refused(queue="one-too-many").sqlstate == FULL
    shop.close()
