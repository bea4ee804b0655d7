"""Slow searches end after a time limit, and leave connections for enqueues and claims."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx
import pytest

from tests.api_client import Api, Json
from tests.broker import RunningBroker, threaded_broker
from tests.database import Loop, TestDatabase, create_database
from tests.faults.db.test_write_outcome import outcome
from tests.faults.postgres.conftest import settings_with
from tests.polls import Background

Eventually = Callable[[Callable[[], Any]], Any]

# Searches run in read-only transactions: enqueues, claims and background services are not held.
SLOW = """
CREATE TABLE reads_held (since timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION hold_read() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    WHILE current_setting('transaction_read_only')::boolean AND EXISTS (SELECT FROM reads_held) LOOP
        PERFORM pg_sleep(0.002);
    END LOOP;
    RETURN true;
END
$$;
"""
SLOW_TABLE = """
ALTER TABLE {table} RENAME TO kept_{table};
CREATE VIEW {table} AS SELECT * FROM kept_{table} WHERE (SELECT hold_read());
"""
# A view has no system columns, which claims read.
CLAIM_OF_TABLE = """
DO $do$
BEGIN
    EXECUTE regexp_replace(
        pg_get_functiondef('claim_jobs'::regproc), '\\m(FROM|UPDATE) jobs\\M', '\\1 kept_jobs AS jobs', 'g'
    );
END
$do$;
"""
SLOW_TABLES = ("jobs", "dead_letters", "stat_rates")
FILTER = {"filter": {"job_type": "test"}}

Search = tuple[str, str, Any]


def searches(job: Json) -> dict[str, Search]:
    """The operations that may read many rows, as method, path and body."""
    return {
        "jobs": ("GET", "/jobs?tag=x", None),
        "cancel": ("POST", "/jobs/cancel", {**FILTER, "dry_run": True}),
        "explain": ("GET", f"/jobs/{job['id']}/explain", None),
        "dead letters": ("GET", "/dead-letters", None),
        "groups": ("GET", "/dead-letters/groups", None),
        "replay": ("POST", "/dead-letters/replay", {**FILTER, "dry_run": True}),
        "purge of dead letters": ("POST", "/dead-letters/purge", FILTER),
        "purge of a queue": ("POST", f"/queues/{job['queue']}/purge", {"dry_run": True}),
        "stats": ("GET", "/stats", None),
        "stats of a queue": ("GET", f"/queues/{job['queue']}/stats", None),
    }


class SlowReads:
    """Blocks reads of jobs, dead letters and rates by searches."""

    def __init__(self, db: TestDatabase) -> None:
        self._db = db

    def running(self) -> int:
        return int(
            self._db.value(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
            )
        )

    @contextmanager
    def held(self) -> Iterator[None]:
        self._db.execute("INSERT INTO reads_held DEFAULT VALUES")
        try:
            yield
        finally:
            self._db.execute("DELETE FROM reads_held")


@pytest.fixture(scope="module")
def database(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, "slow reads"), loop)
    database.execute(SLOW + "".join(SLOW_TABLE.format(table=table) for table in SLOW_TABLES) + CLAIM_OF_TABLE)
    yield database
    database.close()


def test_search_ends_after_the_time_limit(database: TestDatabase, queue: str, eventually: Eventually) -> None:
    reads = SlowReads(database)
    with threaded_broker(settings_with(read_timeout_seconds=0.2, sweep_seconds=1.0), database.dsn) as broker:
        calls = searches(Api(broker.http, queue).enqueue())
        with reads.held():
            responses = {
                name: broker.http.request(method, path, json=body) for name, (method, path, body) in calls.items()
            }
            assert reads.running() == 0, "the server cancels them"
        for method, path, body in calls.values():
            eventually(partial(succeeds, broker, method, path, body))
    assert {name: response.status_code for name, response in responses.items()} == dict.fromkeys(calls, 503)
    assert {name: outcome(response) for name, response in responses.items()} == dict.fromkeys(calls, "not_done")
    assert [name for name, response in responses.items() if "narrow the filter" not in response.json()["detail"]] == []


def succeeds(broker: RunningBroker, method: str, path: str, body: Any) -> bool:
    """Retried, because a busy machine may need longer than the time limit."""
    return broker.http.request(method, path, json=body).status_code == 200


def call_while_searches_block(
    database: TestDatabase, background: Background, eventually: Eventually, queue: str, share: int
) -> list[httpx.Response]:
    """The responses to an enqueue, a claim and one more search, while searches use every connection
    that they may use.
    """
    reads = SlowReads(database)
    settings = settings_with(
        pool_size=5, pool_reserved=1, pool_reads=share, acquire_timeout_seconds=1.0, sweep_seconds=1.0, notify=False
    )
    with threaded_broker(settings, database.dsn) as broker:
        api = Api(broker.http, queue)
        api.enqueue()
        with reads.held():
            eventually(lambda: submit_search(background, api, reads) == share)
            body = {"queue": queue, "job_type": "test"}
            return [api.http.post("/jobs", json=body), api.http.post("/claim", json={"queues": [queue]}), search(api)]


def submit_search(background: Background, api: Api, reads: SlowReads) -> int:
    background.submit(search, api)
    return reads.running()


def search(api: Api) -> httpx.Response:
    return api.http.get("/dead-letters")


def test_searches_leave_connections_for_enqueues_and_claims(
    database: TestDatabase, background: Background, eventually: Eventually, queue: str
) -> None:
    enqueue_response, claim_response, search_response = call_while_searches_block(
        database, background, eventually, queue, share=2
    )
    assert enqueue_response.status_code == 201
    assert len(claim_response.json()["jobs"]) == 1
    assert outcome(search_response) == "not_done"


def test_searches_without_a_limited_share_use_every_connection(
    database: TestDatabase, background: Background, eventually: Eventually, queue: str
) -> None:
    """The control: the test above can fail."""
    responses = call_while_searches_block(database, background, eventually, queue, share=4)
    assert [outcome(response) for response in responses] == ["not_done"] * 3
