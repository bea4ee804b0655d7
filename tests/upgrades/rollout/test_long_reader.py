"""A migration that needs an exclusive lock on `jobs`, behind a long reader: claims continue.

Fault: docs/reliability/faults.md#f1. Rule: docs/reliability/rules.md#r18."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from alembic import command
from app.db import migrations
from tests.api_client import Api
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import Loop, TestDatabase, create_database
from tests.polls import Background
from tests.upgrades.later_revisions import BASELINE, COLUMN, later_revisions
from tests.upgrades.migrations.test_concurrent_migrations import Session

Eventually = Callable[[Callable[[], Any]], Any]

CLAIMS = 5
WAITING_FOR_EXCLUSIVE_LOCK = """
SELECT count(*)
FROM pg_locks JOIN pg_database ON pg_database.oid = database
WHERE relation = 'jobs'::regclass AND mode = 'AccessExclusiveLock' AND NOT granted AND datname = current_database()
"""


@pytest.fixture
def database(postgres: str, loop: Loop, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TestDatabase]:
    """A database after a migration that added a column to `jobs`. Its downgrade drops the column."""
    database = TestDatabase(create_database(postgres, loop, request.node.name[:60]), loop)
    with later_revisions(tmp_path):
        command.upgrade(migrations.config(database.dsn), COLUMN)
        yield database
    database.close()


@pytest.fixture
def reader(database: TestDatabase) -> Iterator[Session]:
    session = Session(database.dsn, database.loop)
    session.execute("BEGIN; SELECT count(*) FROM jobs")
    yield session
    session.close()


def test_claims_succeed_behind_a_waiting_migration(
    database: TestDatabase, reader: Session, eventually: Eventually
) -> None:
    """The downgrade stands for any such migration. lock_timeout makes it leave the lock queue
    repeatedly."""
    with threaded_broker(TEST_SETTINGS, database.dsn) as broker, ThreadPoolExecutor() as executor:
        api = Api(broker.http, "read")
        api.enqueue_many(CLAIMS)
        migrating = executor.submit(migrations.downgrade, database.dsn, BASELINE)
        statuses = [status_of_claim(api, database, eventually) for _ in range(CLAIMS)]
        assert not migrating.done()
        reader.execute("COMMIT")
        migrating.result(60)
    assert statuses == [200] * CLAIMS


def test_claims_behind_an_alter_without_lock_timeout_fail_and_no_job_is_lost(
    database: TestDatabase, reader: Session, background: Background, eventually: Eventually
) -> None:
    """Control: without lock_timeout all claims wait behind it until their own lock_timeout ends
    them."""
    other_session = Session(database.dsn, database.loop)
    with threaded_broker(TEST_SETTINGS, database.dsn) as broker:
        api = Api(broker.http, "control")
        api.enqueue_many(CLAIMS)
        altering = background.submit(other_session.execute, "ALTER TABLE jobs ADD COLUMN more int")
        assert [status_of_claim(api, database, eventually) for _ in range(2)] == [503] * 2
        assert not altering.done()
        reader.execute("COMMIT")
        altering.result(60)
        assert len(api.claim(max_jobs=CLAIMS)["jobs"]) == CLAIMS
    other_session.close()


def status_of_claim(api: Api, database: TestDatabase, eventually: Eventually) -> int:
    """Sends a claim while a session waits for the exclusive lock; returns its status."""
    eventually(lambda: database.value(WAITING_FOR_EXCLUSIVE_LOCK) > 0)
    return api.http.post("/claim", json={"queues": [api.queue]}).status_code
