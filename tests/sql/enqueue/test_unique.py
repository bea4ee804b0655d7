"""Unique keys: SQL and HTTP share the keys and exclude each other."""

from typing import Any

import pytest

from tests.api.unique_keys.keys import count_jobs, end_windows
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.polls import Background
from tests.sql.enqueue.conftest import KeyedEnqueues, Session

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'shop' AND wait_event_type = 'Lock'"
BOTH_WAYS = pytest.mark.parametrize(("first", "second"), [("sql", "http"), ("http", "sql"), ("sql", "sql")])


@BOTH_WAYS
def test_second_enqueue_with_the_unique_key_returns_the_first_job(
    keyed: KeyedEnqueues, db: TestDatabase, first: str, second: str
) -> None:
    job_id = keyed.via(first)
    assert keyed.via(second) == job_id
    assert keyed.api.job(job_id)["unique_key"] == "k"
    assert keyed.via(second, "other") != job_id
    assert count_jobs(db) == 2


@BOTH_WAYS
def test_unique_key_is_held_while_its_job_is_live(keyed: KeyedEnqueues, first: str, second: str) -> None:
    job_id = keyed.via(first)
    claimed = keyed.api.claim_one()
    assert keyed.via(second) == job_id
    keyed.api.complete(claimed)
    assert keyed.via(second) != job_id


@BOTH_WAYS
def test_unique_key_is_held_for_its_window_after_the_job_has_finished(
    keyed: KeyedEnqueues, db: TestDatabase, first: str, second: str
) -> None:
    finished, dead = keyed.via(first, "a", for_seconds=60), keyed.via(first, "b", for_seconds=60)
    keyed.api.complete(keyed.api.claim_one())
    keyed.api.fail(keyed.api.claim_one(), retryable=False)
    assert (keyed.via(second, "a"), keyed.via(second, "b")) == (finished, dead)
    end_windows(db)
    assert {keyed.via(second, "a"), keyed.via(second, "b")}.isdisjoint({finished, dead})


@pytest.mark.parametrize("source", ["sql", "http"])
def test_unique_keys_of_sql_and_http_belong_to_a_queue(keyed: KeyedEnqueues, source: str) -> None:
    assert keyed.via(source) != keyed.via(source, queue=f"{keyed.api.queue}-2")


def test_duplicate_rejected_by_sql_names_the_existing_job(keyed: KeyedEnqueues) -> None:
    job_id = keyed.http()["id"]
    error: Any = keyed.shop.enqueue_error(unique_key="k", on_duplicate="reject")
    assert (error.sqlstate, error.constraint_name, error.column_name) == (
        "23505",
        "longshore_unique_key",
        "unique_key",
    )
    assert (error.message, error.detail) == (f"job {job_id} has this unique_key", job_id)


def test_sql_job_rejects_duplicates(keyed: KeyedEnqueues) -> None:
    job_id = keyed.sql()
    problem = keyed.http(on_duplicate="reject")
    assert (problem["code"], problem["existing_job_id"]) == ("duplicate_job", job_id)
    assert keyed.sql("other", on_duplicate="reject") != job_id


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_concurrent_sql_enqueue_waits_for_the_end_of_the_transaction(
    keyed: KeyedEnqueues, other_session: Session, db: TestDatabase, background: Background, end: str
) -> None:
    with keyed.shop.transaction(end):
        first = keyed.sql()
        waiting = background.submit(other_session.enqueue, unique_key="k")
        wait_until(lambda: db.value(WAITING) == 1)
    assert (waiting.result(20) == first) == (end == "COMMIT")
    assert db.value("SELECT count(*) FROM jobs") == 1


def test_http_enqueue_does_not_wait_forever_for_a_sql_transaction(keyed: KeyedEnqueues) -> None:
    with keyed.shop.transaction():
        job_id = keyed.sql()
        problem = keyed.http()
        assert (problem["code"], problem["outcome"]) == ("database_unavailable", "not_done")
    assert keyed.http()["id"] == job_id


def test_duplicate_within_one_transaction_returns_the_first_job(keyed: KeyedEnqueues, db: TestDatabase) -> None:
    with keyed.shop.transaction():
        assert keyed.sql() == keyed.sql()
    assert count_jobs(db) == 1


def test_duplicate_in_an_older_snapshot_fails_with_a_serialization_error(keyed: KeyedEnqueues) -> None:
    keyed.shop.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
    keyed.shop.value("SELECT count(*) FROM pg_class")
    keyed.http()
    assert keyed.shop.enqueue_error(unique_key="k").sqlstate == "40001"
    keyed.shop.execute("ROLLBACK")


def test_concurrent_sql_and_http_enqueues_create_one_job(
    keyed: KeyedEnqueues, other_session: Session, db: TestDatabase, background: Background
) -> None:
    for key in map(str, range(20)):
        ids = background.together(
            lambda key=key: keyed.sql(key),  # type: ignore[misc]
            lambda key=key: keyed.http(key)["id"],  # type: ignore[misc]
            lambda key=key: other_session.enqueue(unique_key=key),  # type: ignore[misc]
            lambda key=key: keyed.http(key)["id"],  # type: ignore[misc]
        )
        assert len(set(ids)) == 1
    assert count_jobs(db) == 20
    assert keyed.api.counts() == {"ready": 20}
