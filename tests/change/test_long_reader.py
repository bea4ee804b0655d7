"""A migration that needs all of `jobs` for itself, behind somebody who reads it for long (F1, R18): claims go on meanwhile."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from app.db import migrations
from tests.api import Api
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import Loop, TestDatabase, create_database
from tests.migrations.test_in_company import Session
from tests.polls import Background

Eventually = Callable[[Callable[[], Any]], Any]

CLAIMS = 5
WAITING = """
SELECT count(*)
FROM pg_locks JOIN pg_database ON pg_database.oid = database
WHERE relation = 'jobs'::regclass AND mode = 'AccessExclusiveLock' AND NOT granted AND datname = current_database()
"""


@pytest.fixture
def read(postgres: str, loop: Loop, request: pytest.FixtureRequest) -> Iterator[TestDatabase]:
    """One step above 0004, on the way to which a column is dropped."""
    database = TestDatabase(create_database(postgres, loop, request.node.name[:60]), loop)
    migrations.downgrade(database.dsn, "0005")
    yield database
    database.close()


@pytest.fixture
def reader(read: TestDatabase) -> Iterator[Session]:
    session = Session(read.dsn, read.loop)
    session.execute("BEGIN; SELECT count(*) FROM jobs")
    yield session
    session.close()


def test_claims_go_on_behind_our_migration(read: TestDatabase, reader: Session, eventually: Eventually) -> None:
    """The way down stands for any such migration. It gives up its place in the line again and again."""
    with threaded_broker(TEST_SETTINGS, read.dsn) as broker, ThreadPoolExecutor() as deploys:
        api = Api(broker.http, "read")
        api.enqueue_many(CLAIMS)
        migrating = deploys.submit(migrations.downgrade, read.dsn, "0004")
        ours = [answered(api, read, eventually) for _ in range(CLAIMS)]
        assert not migrating.done()
        reader.execute("COMMIT")
        migrating.result(60)
    assert ours == [200] * CLAIMS


def test_claims_behind_an_impatient_alter_are_refused_and_nothing_is_lost(
    read: TestDatabase, reader: Session, background: Background, eventually: Eventually
) -> None:
    """The control: without lock_timeout all wait in line behind it, until their own patience ends (C22)."""
    impatient = Session(read.dsn, read.loop)
    with threaded_broker(TEST_SETTINGS, read.dsn) as broker:
        api = Api(broker.http, "control")
        api.enqueue_many(CLAIMS)
        altering = background.submit(impatient.execute, "ALTER TABLE jobs ADD COLUMN more int")
        assert [answered(api, read, eventually) for _ in range(2)] == [503] * 2
        assert not altering.done()
        reader.execute("COMMIT")
        altering.result(60)
        assert len(api.claim(max_jobs=CLAIMS)["jobs"]) == CLAIMS
    impatient.close()


def answered(api: Api, database: TestDatabase, eventually: Eventually) -> int:
    """The status of a claim that comes while somebody waits for the table."""
    eventually(lambda: database.value(WAITING) > 0)
    return api.http.post("/claim", json={"queues": [api.queue]}).status_code
