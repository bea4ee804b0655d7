"""The job is part of the caller's transaction: it commits or rolls back with the caller's rows."""

import asyncpg
import pytest

from tests.api_client import Api
from tests.database import TestDatabase
from tests.sql.enqueue.conftest import Session

ORDERS = "CREATE TABLE IF NOT EXISTS shop.orders (id int PRIMARY KEY, item text NOT NULL)"
ORDER = "INSERT INTO shop.orders (id, item) VALUES ($1, 'tea') RETURNING id"


@pytest.fixture
def orders(shop: Session) -> Session:
    """A session of the service, with an empty table of orders."""
    shop.execute(f"{ORDERS}; TRUNCATE shop.orders")
    return shop


def insert_order(orders: Session, number: int) -> str:
    orders.value(ORDER, number)
    return orders.enqueue(job_type="order.ship", payload=f'{{"order_id": {number}}}')


def test_row_and_job_commit_together(orders: Session, api: Api, db: TestDatabase) -> None:
    with orders.transaction():
        job_id = insert_order(orders, 17)
        assert api.claim()["jobs"] == []
    claimed = api.claim_one()
    assert (claimed["id"], claimed["job_type"], claimed["payload"]) == (job_id, "order.ship", {"order_id": 17})
    assert db.value("SELECT count(*) FROM shop.orders") == 1
    assert api.complete(claimed)["state"] == "completed"


def test_row_and_job_roll_back_together(orders: Session, api: Api, db: TestDatabase) -> None:
    with orders.transaction("ROLLBACK"):
        job_id = insert_order(orders, 17)
    api.get(f"/jobs/{job_id}", status=404)
    assert api.claim()["jobs"] == []
    assert db.value("SELECT count(*) FROM shop.orders") == 0


def test_failed_row_rolls_back_its_job(orders: Session, api: Api, db: TestDatabase) -> None:
    insert_order(orders, 17)
    with pytest.raises(asyncpg.UniqueViolationError):
        orders.execute("BEGIN; SELECT longshore_enqueue_v1('order.ship'); INSERT INTO shop.orders VALUES (17, 'tea')")
    orders.execute("ROLLBACK")
    assert db.value("SELECT count(*) FROM jobs") == 1


def test_rejected_job_rolls_back_its_row(orders: Session, db: TestDatabase) -> None:
    with orders.transaction():
        orders.value(ORDER, 17)
        orders.enqueue_error(priority=40_000)
    assert db.value("SELECT count(*) FROM shop.orders") == 0


def test_rollback_to_savepoint_removes_only_the_later_job(orders: Session, api: Api, db: TestDatabase) -> None:
    with orders.transaction():
        kept = insert_order(orders, 1)
        orders.execute("SAVEPOINT before")
        insert_order(orders, 2)
        orders.execute("ROLLBACK TO SAVEPOINT before")
    assert [job["id"] for job in api.claim(max_jobs=10)["jobs"]] == [kept]
    assert db.value("SELECT count(*) FROM shop.orders") == 1


def test_job_is_invisible_before_the_commit(orders: Session, api: Api) -> None:
    with orders.transaction():
        job_id = insert_order(orders, 17)
        api.get(f"/jobs/{job_id}", status=404)
        assert api.get("/jobs", queue=api.queue)["items"] == []
    assert api.job(job_id)["state"] == "ready"


def test_sql_statement_may_enqueue_many_jobs(orders: Session, api: Api) -> None:
    orders.value("SELECT count(longshore_enqueue_v1('test', queue => $1)) FROM generate_series(1, 100)", orders.queue)
    ids = [job["id"] for job in api.claim(max_jobs=1000)["jobs"]]
    assert len(set(ids)) == 100


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_sql_enqueue_works_at_every_isolation_level(shop: Session, api: Api, level: str) -> None:
    api.configure(max_waiting=10, max_running_per_group=1)
    with shop.transaction():
        shop.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        parent = shop.enqueue(unique_key="a", group_key="g")
        child = shop.enqueue(unique_key="b", depends_on=[parent])
    assert [api.job(job_id)["state"] for job_id in (parent, child)] == ["ready", "blocked"]


def test_sql_jobs_are_counted_at_commit(orders: Session, api: Api) -> None:
    api.enqueue()
    with orders.transaction():
        insert_order(orders, 1)
        orders.enqueue(delay_seconds=60)
        assert api.counts() == {"ready": 1}
    assert api.counts() == {"ready": 2, "scheduled": 1}


def test_sql_enqueue_sends_no_notification(shared_database: TestDatabase) -> None:
    """NOTIFY would take a lock of the whole cluster at commit."""
    sources = [
        row["prosrc"] for row in shared_database.rows("SELECT prosrc FROM pg_proc WHERE proname LIKE 'longshore%'")
    ]
    assert len(sources) > 10
    assert [source for source in sources if "notify" in source.lower()] == []
