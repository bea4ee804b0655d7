"""LONGSHORE_QUEUE_IDS: `migrate` stores the range, `serve` compares it, and new queues get ids of it
over HTTP and SQL."""

from collections.abc import Iterator

import pytest

from tests.api_client import Api
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.contract.cli.command import run
from tests.database import Loop, TestDatabase, create_database

IDS = "SELECT id FROM queues ORDER BY name"


@pytest.fixture
def new_database(postgres: str, loop: Loop, request: pytest.FixtureRequest) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, request.node.name[:60]), loop)
    yield database
    database.close()


@pytest.mark.slow
def test_new_queues_get_ids_of_the_stored_range(new_database: TestDatabase) -> None:
    assert run("migrate", DATABASE_URL=new_database.dsn, LONGSHORE_QUEUE_IDS="40-43").returncode == 0
    with threaded_broker(TEST_SETTINGS, new_database.dsn) as broker:
        api = Api(broker.http, "a")
        api.enqueue()
        api.put("/queues/b", {})
        new_database.value("SELECT longshore_enqueue_v1('test', queue => 'c')")
        api.batch({"queue": "d"})
        assert [row["id"] for row in new_database.rows(IDS)] == [40, 41, 42, 43]
        api.enqueue(queue="e", status=429)


@pytest.mark.slow
def test_existing_queues_keep_their_ids_when_the_range_changes(new_database: TestDatabase) -> None:
    new_database.execute("INSERT INTO queues (id, name) VALUES (7, 'a')")
    assert run("migrate", DATABASE_URL=new_database.dsn, LONGSHORE_QUEUE_IDS="3-5").returncode == 0
    new_database.value("SELECT longshore_enqueue_v1('test', queue => 'b')")
    assert [row["id"] for row in new_database.rows(IDS)] == [7, 3]
    assert run("migrate", DATABASE_URL=new_database.dsn).returncode == 0
    assert new_database.value("SELECT last_id FROM queue_id_range") == 5


@pytest.mark.slow
def test_serve_refuses_another_range_than_the_stored_one(new_database: TestDatabase) -> None:
    refused = run("serve", DATABASE_URL=new_database.dsn, LONGSHORE_QUEUE_IDS="3-5", LONGSHORE_PORT="0")
    assert refused.returncode == 2
    assert "LONGSHORE_QUEUE_IDS is 3-5, but the database has 1-65535: run `python -m app migrate`" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize("value", ["5", "0-9", "9-8", "1-65536", "a-b", "1-2-3"])
def test_invalid_range_is_rejected(value: str) -> None:
    failed = run("config", LONGSHORE_QUEUE_IDS=value)
    expected = f"longshore: LONGSHORE_QUEUE_IDS: must be first-last within 1-65535, for example 1-999, not {value}\n"
    assert (failed.returncode, failed.stderr) == (2, expected)
