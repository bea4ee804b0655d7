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
def test_the_second_gets_the_job_of_the_first(poll_history: Asks, db: TestDatabase, first: str, second: str) -> None:
    job_id = poll_history.by(first)
    assert poll_history.by(second) == job_id
    assert poll_history.api.job(job_id)["unique_key"] == "k"
    assert poll_history.by(second, "other") != job_id
    assert count_jobs(db) == 2


@BOTH_WAYS
def test_a_key_is_held_while_its_job_lives(poll_history: Asks, first: str, second: str) -> None:
    job_id = poll_history.by(first)
    held = poll_history.api.claim_one()
    assert poll_history.by(second) == job_id
    poll_history.api.complete(held)
    assert poll_history.by(second) != job_id


@BOTH_WAYS
def test_a_window_outlives_the_job(poll_history: Asks, db: TestDatabase, first: str, second: str) -> None:
    finished, dead = poll_history.by(first, "a", for_seconds=60), poll_history.by(first, "b", for_seconds=60)
    poll_history.api.complete(poll_history.api.claim_one())
    poll_history.api.fail(poll_history.api.claim_one(), retryable=False)
    assert (poll_history.by(second, "a"), poll_history.by(second, "b")) == (finished, dead)
    window_over(db)
    assert {poll_history.by(second, "a"), poll_history.by(second, "b")}.isdisjoint({finished, dead})


@pytest.mark.parametrize("way", ["sql", "http"])
def test_keys_belong_to_a_queue(poll_history: Asks, way: str) -> None:
    assert poll_history.by(way) != poll_history.by(way, queue=f"{poll_history.api.queue}-2")


def test_one_that_is_rejected_says_which_job_has_the_key(poll_history: Asks) -> None:
    job_id = poll_history.http()["id"]
    refused: Any = poll_history.shop.refused(unique_key="k", on_duplicate="reject")
    assert (refused.sqlstate, refused.constraint_name, refused.column_name) == (
        "23505",
        "longshore_unique_key",
        "unique_key",
    )
    assert (refused.message, refused.detail) == (f"job {job_id} has the unique_key", job_id)


def test_one_that_came_by_sql_rejects_others(poll_history: Asks) -> None:
    job_id = poll_history.sql()
    problem = poll_history.http(on_duplicate="reject")
    assert (problem["code"], problem["existing_job_id"]) == ("duplicate_job", job_id)
    assert poll_history.sql("other", on_duplicate="reject") != job_id


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_rival_waits_for_the_end_of_the_transaction(
    poll_history: Asks, rival: Session, db: TestDatabase, background: Background, end: str
) -> None:
    with poll_history.shop.transaction(end):
        first = poll_history.sql()
        waits = background.submit(rival.enqueue, unique_key="k")
        wait_until(lambda: db.value(WAITING) == 1)
    assert (waits.result(20) == first) == (end == "COMMIT")
    assert db.value("SELECT count(*) FROM jobs") == 1


def test_http_does_not_wait_for_ever(poll_history: Asks) -> None:
    with poll_history.shop.transaction():
        job_id = poll_history.sql()
        problem = poll_history.http()
        assert (problem["code"], problem["outcome"]) == ("database_unavailable", "not_done")
    assert poll_history.http()["id"] == job_id


def test_two_of_one_transaction(poll_history: Asks, db: TestDatabase) -> None:
    with poll_history.shop.transaction():
        assert poll_history.sql() == poll_history.sql()
    assert count_jobs(db) == 1


def test_in_a_snapshot_of_before_the_first_the_second_has_to_be_repeated(poll_history: Asks) -> None:
    poll_history.shop.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
    poll_history.shop.value("SELECT count(*) FROM pg_class")
    poll_history.http()
    assert poll_history.shop.refused(unique_key="k").sqlstate == "40001"
    poll_history.shop.execute("ROLLBACK")


def test_of_many_at_once_one_comes_in(
    poll_history: Asks, rival: Session, db: TestDatabase, background: Background
) -> None:
    for key in map(str, range(20)):
        ids = background.together(
            lambda key=key: poll_history.sql(key),  # type: ignore[misc]
            lambda key=key: poll_history.http(key)["id"],  # type: ignore[misc]
            lambda key=key: rival.enqueue(unique_key=key),  # type: ignore[misc]
            lambda key=key: poll_history.http(key)["id"],  # type: ignore[misc]
        )
        assert len(set(ids)) == 1
    assert count_jobs(db) == 20
    assert poll_history.api.counts() == {"ready": 20}
