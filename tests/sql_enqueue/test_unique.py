"""Unique keys: who comes by SQL and who comes over HTTP ask for the same keys, and exclude each other."""

from typing import Any

import pytest

from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.polls import Background
from tests.sql_enqueue.conftest import Asks, Session
from tests.unique.keys import count_jobs, window_over

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'shop' AND wait_event_type = 'Lock'"
BOTH_WAYS = pytest.mark.parametrize(("first", "second"), [("sql", "http"), ("http", "sql"), ("sql", "sql")])


@BOTH_WAYS
def test_the_second_gets_the_job_of_the_first(asks: Asks, db: TestDatabase, first: str, second: str) -> None:
    job_id = asks.by(first)
    assert asks.by(second) == job_id
    assert asks.api.job(job_id)["unique_key"] == "k"
    assert asks.by(second, "other") != job_id
    assert count_jobs(db) == 2


@BOTH_WAYS
def test_a_key_is_held_while_its_job_lives(asks: Asks, first: str, second: str) -> None:
    job_id = asks.by(first)
    held = asks.api.claim_one()
    assert asks.by(second) == job_id
    asks.api.complete(held)
    assert asks.by(second) != job_id


@BOTH_WAYS
def test_a_window_outlives_the_job(asks: Asks, db: TestDatabase, first: str, second: str) -> None:
    finished, dead = asks.by(first, "a", for_seconds=60), asks.by(first, "b", for_seconds=60)
    asks.api.complete(asks.api.claim_one())
    asks.api.fail(asks.api.claim_one(), retryable=False)
    assert (asks.by(second, "a"), asks.by(second, "b")) == (finished, dead)
    window_over(db)
    assert {asks.by(second, "a"), asks.by(second, "b")}.isdisjoint({finished, dead})


@pytest.mark.parametrize("way", ["sql", "http"])
def test_keys_belong_to_a_queue(asks: Asks, way: str) -> None:
    assert asks.by(way) != asks.by(way, queue=f"{asks.api.queue}-2")


def test_one_that_is_rejected_says_which_job_has_the_key(asks: Asks) -> None:
    job_id = asks.http()["id"]
    refused: Any = asks.shop.refused(unique_key="k", on_duplicate="reject")
    assert (refused.sqlstate, refused.constraint_name, refused.column_name) == ("23505", "longshore_unique_key", "unique_key")
    assert (refused.message, refused.detail) == (f"job {job_id} has the unique_key", job_id)


def test_one_that_came_by_sql_rejects_others(asks: Asks) -> None:
    job_id = asks.sql()
    problem = asks.http(on_duplicate="reject")
    assert (problem["code"], problem["existing_job_id"]) == ("duplicate_job", job_id)
    assert asks.sql("other", on_duplicate="reject") != job_id


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_rival_waits_for_the_end_of_the_transaction(
    asks: Asks, rival: Session, db: TestDatabase, background: Background, end: str
) -> None:
    with asks.shop.transaction(end):
        first = asks.sql()
        waits = background.submit(rival.enqueue, unique_key="k")
        wait_until(lambda: db.value(WAITING) == 1)
    assert (waits.result(20) == first) == (end == "COMMIT")
    assert db.value("SELECT count(*) FROM jobs") == 1


def test_http_does_not_wait_for_ever(asks: Asks) -> None:
    with asks.shop.transaction():
        job_id = asks.sql()
        problem = asks.http()
        assert (problem["code"], problem["outcome"]) == ("database_unavailable", "not_done")
    assert asks.http()["id"] == job_id


def test_two_of_one_transaction(asks: Asks, db: TestDatabase) -> None:
    with asks.shop.transaction():
        assert asks.sql() == asks.sql()
    assert count_jobs(db) == 1


def test_in_a_snapshot_of_before_the_first_the_second_has_to_be_repeated(asks: Asks) -> None:
    asks.shop.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
    asks.shop.value("SELECT count(*) FROM pg_class")
    asks.http()
    assert asks.shop.refused(unique_key="k").sqlstate == "40001"
    asks.shop.execute("ROLLBACK")


def test_of_many_at_once_one_comes_in(asks: Asks, rival: Session, db: TestDatabase, background: Background) -> None:
    for key in map(str, range(20)):
        ids = background.together(
            lambda key=key: asks.sql(key),  # type: ignore[misc]
            lambda key=key: asks.http(key)["id"],  # type: ignore[misc]
            lambda key=key: rival.enqueue(unique_key=key),  # type: ignore[misc]
            lambda key=key: asks.http(key)["id"],  # type: ignore[misc]
        )
        assert len(set(ids)) == 1
    assert count_jobs(db) == 20
    assert asks.api.counts() == {"ready": 20}
