"""The broker retries a transaction that Postgres rolled back because of a deadlock.

The client does not notice.
"""

import ast
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app.db.migrations import ROOT
from app.db.session_settings import NEEDED
from tests.api_client import Api, Json
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import Loop, TestDatabase, create_database
from tests.polls import Background

NAME = "deadlocks"
TABLES = ("deduplication_keys", "schedules", "job_types", "queues", "group_cooldowns")
# The first write after a reset of `tries` acquires lock 1, waits until the test waits for lock 1,
# and then waits for lock 2, which the test holds. A sequence is not rolled back, so the second try
# acquires no locks.
LOCKS = """
CREATE SEQUENCE tries START 2;
CREATE FUNCTION lock_both() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('tries') = 1 THEN
        PERFORM pg_advisory_xact_lock(1);
        WHILE NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 1 AND NOT granted) LOOP
            PERFORM pg_sleep(0.01);
        END LOOP;
        PERFORM pg_advisory_xact_lock(2);
    END IF;
    RETURN NEW;
END
$$;
"""
LOCK_1_HOLDERS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 1 AND granted"
# The callers parse the jobs again, because writing changes the drafts. They are retried as a whole.
RETRIED_BY_ITS_CALLERS = {
    "app/enqueue/draft_writer.py:write_in_transaction",
    "app/enqueue/service.py:_insert_columns",
}


def fail_group(api: Api) -> Json:
    api.enqueue(queue="groups", group="g")
    return api.fail(api.claim_one(queues=["groups"]), scope="group", retry_after_seconds=60)


CALLS: dict[str, Callable[[Api], Json]] = {
    "enqueue with a key": lambda api: api.enqueue(key="one"),
    "enqueue with a unique key": lambda api: api.enqueue(unique={"key": "u"}),
    "batch with a key": lambda api: api.batch({}, {"unique": {"key": "v"}}, key="many"),
    "claim with a key": lambda api: api.claim(key="claim"),
    "failure of a group": fail_group,
    "schedule": lambda api: api.put(
        "/schedules/daily", {"every_seconds": 3600, "job": {"queue": NAME, "job_type": "t"}}
    ),
    "job type": lambda api: api.put("/job-types/t", {"max_attempts": 3}),
    "queue": lambda api: api.configure(max_running=7),
}


@pytest.fixture(scope="module")
def database(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    """A database that detects deadlocks sooner than by default, so that the tests take less time."""
    database = TestDatabase(create_database(postgres, loop, NAME), loop)
    database.execute(LOCKS)
    for table in TABLES:
        database.execute(
            f"CREATE TRIGGER deadlock BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION lock_both()"
        )
    database.execute(f"ALTER DATABASE {NAME} SET deadlock_timeout = '100ms'")
    yield database
    database.close()


@pytest.fixture(scope="module")
def api(database: TestDatabase) -> Iterator[Api]:
    with threaded_broker(TEST_SETTINGS, database.dsn) as broker:
        api = Api(broker.http, NAME)
        api.configure(max_running=100)
        api.put("/queues/groups", {})
        yield api


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_call_is_retried_after_a_deadlock(
    api: Api,
    database: TestDatabase,
    background: Background,
    eventually: Callable[..., Any],
    call: Callable[[Api], Json],
) -> None:
    with database.uncommitted("SET LOCAL deadlock_timeout = '1min'; SELECT pg_advisory_xact_lock(2)") as other:
        database.execute("SELECT setval('tries', 1, false)")
        response = background.submit(call, api)
        eventually(lambda: database.value(LOCK_1_HOLDERS))
        other("SELECT pg_advisory_xact_lock(1)")  # returns when the broker's transaction has been rolled back
    assert response.result(30)


def test_deadlock_is_detected_before_the_lock_timeout(database: TestDatabase) -> None:
    """Uses the default deadlock_timeout of Postgres."""
    deadlock_timeout, lock_timeout = database.row(
        "SELECT make_interval(secs => boot_val::int / 1000.0), $1::text::interval FROM pg_settings "
        "WHERE name = 'deadlock_timeout'",
        NEEDED["lock_timeout"],
    )
    assert deadlock_timeout < lock_timeout


def test_every_transaction_is_retried_after_a_deadlock() -> None:
    is_retried: dict[str, bool] = {}
    for file in sorted((ROOT / "app").rglob("*.py")):
        for function in ast.walk(ast.parse(file.read_text())):
            if isinstance(function, ast.AsyncFunctionDef) and ".db.transaction()" in ast.unparse(function):
                name = f"{file.relative_to(ROOT)}:{function.name}"
                is_retried[name] = "retry_after_deadlock" in map(ast.unparse, function.decorator_list)
    assert {name for name, retried in is_retried.items() if not retried} == RETRIED_BY_ITS_CALLERS
    assert len(is_retried) > 15
