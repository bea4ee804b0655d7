"""The hot verbs go past the framework: what they answer is what any other route would."""

from collections.abc import Iterator

import httpx
import pytest

from tests.api import Api
from tests.broker import threaded_broker
from tests.conftest import QUICK
from tests.database import Loop, TestDatabase, create_database

REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'what nobody has thought of';
END
$$;
CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON jobs FOR EACH ROW WHEN (NEW.priority = 13) EXECUTE FUNCTION refuse();
"""


@pytest.fixture(scope="module")
def refusing(postgres: str, loop: Loop) -> Iterator[Api]:
    database = TestDatabase(create_database(postgres, loop, "hot"), loop)
    database.execute(REFUSE)
    with threaded_broker(QUICK, database.dsn) as broker:
        yield Api(broker.http, "hot")
    database.close()


@pytest.mark.parametrize(
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
def test_odd_paths_are_told_alike_with_and_without_a_query(http: httpx.Client, path: str, status: int) -> None:
    """With one they take the framework's way."""
    for odd in ("", "?x=1"):
        answer = http.post(path + odd, json={"lease_token": "t"})
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
def test_other_methods_are_refused_as_everywhere(http: httpx.Client, method: str) -> None:
    answer = http.request(method, "/claim", json={})
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/jobs", "GET, HEAD, POST"),
        ("/claim", "POST"),
        ("/queues/q", "DELETE, GET, HEAD, PATCH, PUT"),
        ("/docs", "GET, HEAD"),
    ],
)
def test_a_wrong_method_is_told_all_that_are_right(http: httpx.Client, path: str, allowed: str) -> None:
    answer = http.request("TRACE", path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize("verb", ["hot", "cold"])
def test_what_nobody_has_thought_of_is_a_problem_too(refusing: Api, verb: str) -> None:
    if verb == "hot":
        answer = refusing.http.post("/jobs", json={"job_type": "t", "priority": 13})
    else:
        answer = refusing.http.patch(f"/jobs/{refusing.enqueue()['id']}", json={"priority": 13})
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["instance"] == answer.headers["x-request-id"]


def test_a_bad_idempotency_key_is_told_where_it_is(http: httpx.Client) -> None:
    answer = http.post("/jobs", json={"job_type": "t"}, headers={"Idempotency-Key": "no spaces"})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/header/idempotency-key")
