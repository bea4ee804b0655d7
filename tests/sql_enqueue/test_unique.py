"""Unique keys: who comes by SQL and who comes over HTTP ask for the same keys, and exclude each other."""

from typing import Any

import pytest

from tests.api import Api, Json
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.polls import Background
from tests.sql_enqueue.conftest import Session
from tests.unique.keys import count_jobs, window_over

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'shop' AND wait_event_type = 'Lock'"
STORED = """
SELECT state, state_reason, priority, max_attempts, job_type, lease_seconds, retry, tags, metadata, payload, timeout_seconds, turn,
    group_key, expires_at IS NULL AS lasts, run_at > now() AS later
FROM jobs
WHERE id = $1
"""
WAYS = ["sql", "http"]
BOTH_WAYS = pytest.mark.parametrize(("first", "second"), [("sql", "http"), ("http", "sql"), ("sql", "sql")])


class Asks:
    """Asks for the key, by either way; gives the id of the job that has it."""

    def __init__(self, shop: Session, api: Api) -> None:
        self.shop = shop
        self.api = api

    def by(self, way: str, key: str = "k", **fields: Any) -> str:
        return self.sql(key, **fields) if way == "sql" else self.http(key, **fields)["id"]

    def sql(self, key: str = "k", **fields: Any) -> str:
        if "for_seconds" in fields:
            fields["unique_for_seconds"] = fields.pop("for_seconds")
        return self.shop.enqueue(unique_key=key, **fields)

    def http(self, key: str = "k", **fields: Any) -> Json:
        unique = {name: fields.pop(name) for name in ("for_seconds", "on_duplicate") if name in fields}
        body: Json = {"queue": self.api.queue, "job_type": "test", "unique": {"key": key, **unique}, **fields}
        answer: Json = self.api.http.post("/jobs", json=body).json()
        return answer


@pytest.fixture
def asks(shop: Session, api: Api) -> Asks:
    api.configure()
    return Asks(shop, api)


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


@pytest.mark.parametrize("way", WAYS)
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


@pytest.mark.parametrize("after", [0, 3600], ids=["now", "later"])
@pytest.mark.parametrize("before", ["ready", "scheduled", "blocked"])
def test_a_waiting_job_is_replaced_as_over_http(asks: Asks, db: TestDatabase, before: str, after: int) -> None:
    parent = asks.api.enqueue(delay_seconds=600)["id"]
    waits: dict[str, Json] = {"ready": {}, "scheduled": {"delay_seconds": 600}, "blocked": {"depends_on": [parent]}}
    body = {"job_type": "other", "payload": "2", "priority": 9, "max_attempts": 2, "lease_seconds": 7, "timeout_seconds": 70}
    ids = {way: asks.http(way, group="g", **waits[before])["id"] for way in WAYS}
    counts = asks.api.counts()
    assert asks.sql("sql", on_duplicate="replace", delay_seconds=after, tags=["a"], **body) == ids["sql"]
    moved = {state: asks.api.counts().get(state, 0) - counts.get(state, 0) for state in ("ready", "scheduled", "blocked")}
    assert asks.http("http", on_duplicate="replace", delay_seconds=after, tags=["a"], **body | {"payload": 2})["id"] == ids["http"]
    assert dict(db.row(STORED, ids["sql"])) == dict(db.row(STORED, ids["http"]))
    twice = {state: counts.get(state, 0) + 2 * moved[state] for state in moved}
    assert asks.api.counts() == {state: count for state, count in twice.items() if count}


def test_a_running_job_is_not_replaced(asks: Asks) -> None:
    job_id = asks.http(payload=1)["id"]
    held = asks.api.claim_one()
    assert asks.sql(on_duplicate="replace", payload="2") == job_id
    assert asks.api.job(job_id)["payload"] == 1
    assert asks.api.complete(held)["state"] == "completed"


def test_a_replaced_job_that_is_put_off_gives_its_turn_to_the_next(asks: Asks) -> None:
    asks.api.configure(max_running_per_group=1)
    first = asks.http(group="g")["id"]
    wait_until(lambda: asks.api.http.get(f"/jobs/{first}/explain").json()["state"] == "ready")
    second = asks.api.enqueue(group="g")["id"]
    assert asks.sql(on_duplicate="replace", delay_seconds=600, group_key="another") == first
    assert asks.api.claim_one(wait_seconds=20)["id"] == second
    assert asks.api.job(first)["group"] == "g"


def test_a_replacement_rolls_back_too(asks: Asks) -> None:
    job_id = asks.http(payload=1)["id"]
    with asks.shop.transaction("ROLLBACK"):
        assert asks.sql(on_duplicate="replace", payload="2") == job_id
        assert asks.api.claim()["jobs"] == []  # nobody begins it while it may change
    assert asks.api.claim_one()["payload"] == 1


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
