"""Fast routes bypass the framework, and respond like any other route."""

from collections.abc import Iterator

import httpx
import pytest

from tests.api_client import Api
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import Loop, TestDatabase, create_database
from tests.table import table

FAILING_TRIGGER = """
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'unexpected';
END
$$;
CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON jobs FOR EACH ROW WHEN (NEW.priority = 13) EXECUTE FUNCTION fail();
"""


@pytest.fixture(scope="module")
def failing_api(postgres: str, loop: Loop) -> Iterator[Api]:
    database = TestDatabase(create_database(postgres, loop, "fast_routes"), loop)
    database.execute(FAILING_TRIGGER)
    with threaded_broker(TEST_SETTINGS, database.dsn) as broker:
        yield Api(broker.http, "fast-routes")
    database.close()


@table(
    ("path", "status"),
    [
        ("/jobs/{job_id}/complete", 422),
        ("/jobs/%7Bjob_id%7D/complete", 422),
        ("/jobs/none/complete", 422),
        ("/jobs//complete", 404),
        ("/jobs/x/y/complete", 404),
        ("/jobs/batch/", 404),
        ("/claim/", 404),
        ("/jobs/0198c0de-0000-7000-8000-000000000000/unheard-of", 404),
    ],
)
def test_unusual_paths_get_the_same_error_on_fast_and_framework_routes(
    http: httpx.Client, path: str, status: int
) -> None:
    """A request with a query takes the framework's path."""
    for query in ("", "?x=1"):
        response = http.post(path + query, json={"lease_token": "t"})
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "application/problem+json"


@table("method", ["GET", "PUT", "DELETE", "PATCH"])
def test_other_methods_on_a_fast_route_are_rejected_with_405(http: httpx.Client, method: str) -> None:
    response = http.request(method, "/claim", json={})
    assert (response.status_code, response.json()["code"]) == (405, "method_not_allowed")


@table(
    ("path", "allowed"),
    [
        ("/jobs", "GET, HEAD, POST"),
        ("/claim", "POST"),
        ("/queues/q", "DELETE, GET, HEAD, PATCH, PUT"),
        ("/docs", "GET, HEAD"),
    ],
)
def test_allow_header_lists_all_methods_of_the_path(http: httpx.Client, path: str, allowed: str) -> None:
    response = http.request("TRACE", path)
    assert (response.status_code, response.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize("route", ["fast", "framework"])
def test_unexpected_error_is_returned_as_a_problem(failing_api: Api, route: str) -> None:
    if route == "fast":
        response = failing_api.http.post("/jobs", json={"job_type": "t", "priority": 13})
    else:
        response = failing_api.http.patch(f"/jobs/{failing_api.enqueue()['id']}", json={"priority": 13})
    assert response.status_code == 500
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["instance"] == response.headers["x-request-id"]


def test_error_points_at_an_invalid_idempotency_key(http: httpx.Client) -> None:
    response = http.post("/jobs", json={"job_type": "t"}, headers={"Idempotency-Key": "no spaces"})
    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, "/header/idempotency-key")


def test_large_response_of_a_fast_route_is_complete_and_keeps_the_connection(api: Api) -> None:
    """It is sent in pieces."""
    payloads = [f"{number} " + "x" * 100_000 for number in range(20)]
    api.batch(*[{"payload": payload} for payload in payloads])
    response = api.http.post("/claim", json={"queues": [api.queue], "max_jobs": 20})
    assert [job["payload"] for job in response.json()["jobs"]] == payloads
    assert int(response.headers["content-length"]) == len(response.content) > 2_000_000
    assert (response.headers["cache-control"], response.content[-1:]) == ("no-store", b"\n")
    assert api.http.post("/claim", json={"queues": [api.queue]}).json()["jobs"] == []
