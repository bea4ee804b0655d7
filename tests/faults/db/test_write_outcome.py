"""The outcome in the 503 of a failed database call: `not_done` only if that is certain, else
`unknown`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.api.leases.conftest import WATCH_CLAIMS, ClaimStatements
from tests.api_client import Api, Json
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import Loop, TestDatabase, create_database
from tests.faults.db.proxy import Proxy, proxy_to
from tests.polls import Background, wait_until_read
from tests.table import every_case


@pytest.fixture(scope="module")
def database(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, "outcomes"), loop)
    database.execute(WATCH_CLAIMS)
    yield database
    database.close()


@pytest.fixture
def proxy(database: TestDatabase) -> Iterator[Proxy]:
    with proxy_to(database.dsn) as proxy:
        yield proxy


@pytest.fixture
def api(proxy: Proxy, queue: str) -> Iterator[Api]:
    """A broker whose connections to the database can be broken."""
    with threaded_broker(TEST_SETTINGS.model_copy(update={"notify": False}), proxy.dsn) as broker:
        yield Api(broker.http, queue)


def outcome(response: httpx.Response) -> str:
    problem: Json = response.json()
    assert (response.status_code, problem["code"]) == (503, "database_unavailable"), problem
    assert response.headers["retry-after"] == "1"
    return str(problem["outcome"])


def test_outcome_is_unknown_if_the_connection_breaks_during_a_statement(
    api: Api, proxy: Proxy, database: TestDatabase, background: Background, eventually: Callable[..., Any]
) -> None:
    """Rightly so: Postgres does not notice the broken connection, and commits."""
    job = api.enqueue()
    claims = ClaimStatements(database)
    with claims.held():
        claim = background.submit(api.http.post, "/claim", json={"queues": [api.queue]})
        eventually(lambda: claims.running() == 1)
        proxy.cut()
        assert outcome(claim.result()) == "unknown"
    eventually(lambda: database.value("SELECT state FROM jobs WHERE id = $1", job["id"]) == "running")


def test_outcome_is_unknown_if_the_server_ends_the_session(
    api: Api, database: TestDatabase, background: Background, eventually: Callable[..., Any]
) -> None:
    api.enqueue()
    claims = ClaimStatements(database)
    with claims.held():
        claim = background.submit(api.http.post, "/claim", json={"queues": [api.queue]})
        eventually(lambda: claims.running() == 1)
        end_session = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE wait_event = 'PgSleep' AND datname = current_database()"
        )
        eventually(lambda: database.rows(end_session))  # it is not visible between two sleeps
        assert outcome(claim.result()) == "unknown"


def test_outcome_of_a_read_is_not_done_even_if_the_connection_breaks_during_it(
    api: Api, proxy: Proxy, database: TestDatabase, background: Background, eventually: Callable[..., Any]
) -> None:
    """A read writes nothing, so the caller has nothing to find out."""
    id = api.enqueue()["id"]
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1"
    with every_case() as case:
        for path, table, statement in (
            (f"/jobs/{id}", "jobs", "/* live_jobs */%"),
            (f"/jobs?queue={api.queue}", "jobs", "%ORDER BY%FROM jobs%"),
            ("/dead-letters/groups?by=queue", "dead_letters", "%GROUP BY%"),
            (f"/queues/{api.queue}", "queues", "/* get_queue */%"),
            ("/stats", "workers", "/* workers_seen */%"),
            ("/api-keys", "api_keys", "/* list_keys */%"),
        ):
            with case(path), database.uncommitted(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"):
                call = background.submit(api.http.get, path)
                eventually(lambda statement=statement: database.value(waiting, statement))
                proxy.cut()
                assert outcome(call.result()) == "not_done"
            eventually(lambda: api.http.get("/readyz").status_code == 200)


def test_outcome_is_not_done_without_a_connection(api: Api, proxy: Proxy) -> None:
    api.enqueue()
    proxy.refuse()
    wait_until_read(api.http)
    assert outcome(api.http.post("/jobs", json={"queue": api.queue, "job_type": "test"})) == "not_done"


def test_outcome_is_not_done_after_a_lock_timeout(api: Api, database: TestDatabase) -> None:
    api.enqueue()
    claimed = api.claim_one()
    with database.uncommitted("SELECT FROM jobs WHERE id = $1 FOR UPDATE", claimed["id"]):
        response = api.http.post(f"/jobs/{claimed['id']}/complete", json={"lease_token": claimed["lease_token"]})
    assert outcome(response) == "not_done"
    assert api.complete(claimed)["status"] == "settled"


def test_outcome_is_unknown_after_a_part_of_the_request_was_written(api: Api, database: TestDatabase) -> None:
    queues = [api.queue, f"{api.queue}-later"]  # lanes are written in the order in which their queues were created
    for queue in queues:
        api.enqueue(queue=queue)
    first, second = api.claim(queues=queues, max_jobs=2)["jobs"]
    items = [{"job_id": job["id"], "lease_token": job["lease_token"], "outcome": "complete"} for job in (first, second)]
    with database.uncommitted("SELECT FROM jobs WHERE id = $1 FOR UPDATE", second["id"]):
        response = api.http.post("/settle", json={"items": items})
    assert outcome(response) == "unknown"
    assert [result["status"] for result in api.settle(*items)["results"]] == ["already_settled", "settled"]
