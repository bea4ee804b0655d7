"""What a caller is told when the database fails: `not_done` only if that is certain, else `unknown`."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.api import Api, Json
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import Loop, TestDatabase, create_database
from tests.db.proxy import Proxy, proxy_to
from tests.leases.conftest import WATCH, ClaimStatements
from tests.polls import Background, wait_until_read


@pytest.fixture(scope="module")
def watched(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, "outcomes"), loop)
    database.execute(WATCH)
    yield database
    database.close()


@pytest.fixture
def proxy(watched: TestDatabase) -> Iterator[Proxy]:
    with proxy_to(watched.dsn) as proxy:
        yield proxy


@pytest.fixture
def behind(proxy: Proxy, queue: str) -> Iterator[Api]:
    """A broker whose connections to the database can be cut."""
    with threaded_broker(TEST_SETTINGS.model_copy(update={"notify": False}), proxy.dsn) as broker:
        yield Api(broker.http, queue)


def outcome(response: httpx.Response) -> str:
    problem: Json = response.json()
    assert (response.status_code, problem["code"]) == (503, "database_unavailable"), problem
    assert response.headers["retry-after"] == "1"
    return str(problem["outcome"])


def test_outcome_is_unknown_if_the_connection_breaks_during_a_statement(
    behind: Api, proxy: Proxy, watched: TestDatabase, background: Background, eventually: Callable[..., Any]
) -> None:
    """And rightly so: Postgres did not hear that we are gone, and commits."""
    job = behind.enqueue()
    claims = ClaimStatements(watched)
    with claims.held():
        claim = background.submit(behind.http.post, "/claim", json={"queues": [behind.queue]})
        eventually(lambda: claims.running() == 1)
        proxy.cut()
        assert outcome(claim.result()) == "unknown"
    eventually(lambda: watched.value("SELECT state FROM jobs WHERE id = $1", job["id"]) == "running")


def test_outcome_is_unknown_if_the_server_ends_the_session(
    behind: Api, watched: TestDatabase, background: Background, eventually: Callable[..., Any]
) -> None:
    behind.enqueue()
    claims = ClaimStatements(watched)
    with claims.held():
        claim = background.submit(behind.http.post, "/claim", json={"queues": [behind.queue]})
        eventually(lambda: claims.running() == 1)
        held = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
        eventually(lambda: watched.rows(held))  # between two naps it is not to be seen
        assert outcome(claim.result()) == "unknown"


def test_outcome_is_not_done_without_a_connection(behind: Api, proxy: Proxy) -> None:
    behind.enqueue()
    proxy.refuse()
    wait_until_read(behind.http)
    assert outcome(behind.http.post("/jobs", json={"queue": behind.queue, "job_type": "test"})) == "not_done"


def test_outcome_is_not_done_after_a_lock_timeout(behind: Api, watched: TestDatabase) -> None:
    behind.enqueue()
    held = behind.claim_one()
    with watched.uncommitted("SELECT FROM jobs WHERE id = $1 FOR UPDATE", held["id"]):
        response = behind.http.post(f"/jobs/{held['id']}/complete", json={"lease_token": held["lease_token"]})
    assert outcome(response) == "not_done"
    assert behind.complete(held)["status"] == "settled"


def test_outcome_is_unknown_after_a_part_of_the_request_was_written(behind: Api, watched: TestDatabase) -> None:
    queues = [behind.queue, f"{behind.queue}-later"]  # lanes are written in the order in which their queues were made
    for queue in queues:
        behind.enqueue(queue=queue)
    first, second = behind.claim(queues=queues, max_jobs=2)["jobs"]
    items = [{"job_id": job["id"], "lease_token": job["lease_token"], "outcome": "complete"} for job in (first, second)]
    with watched.uncommitted("SELECT FROM jobs WHERE id = $1 FOR UPDATE", second["id"]):
        response = behind.http.post("/settle", json={"items": items})
    assert outcome(response) == "unknown"
    assert [result["status"] for result in behind.settle(*items)["results"]] == ["already_settled", "settled"]
