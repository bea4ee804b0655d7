"""A bug, made by a rule that the product does not know of: a problem like any other, and no word of the row in the answer or the log."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api import Api
from tests.conftest import wait_until
from tests.contract.test_logs import logging_broker
from tests.database import Loop, TestDatabase, create_database


@pytest.fixture(scope="module")
def database(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    """Where no job can be completed: Postgres answers with a DETAIL that tells the whole row."""
    database = TestDatabase(create_database(postgres, loop, "bugs"), loop)
    database.execute("ALTER TABLE finished_jobs ADD CONSTRAINT nothing_is_ever_finished CHECK (job_type = 'other')")
    yield database
    database.close()


def test_a_bug_is_a_problem_that_gives_nothing_away(database: TestDatabase, tmp_path: Path) -> None:
    file = tmp_path / "broker.log"
    with logging_broker(database.dsn, file) as broker:
        api = Api(broker.http, "bugs")
        api.enqueue(payload="canary")
        held = api.claim_one()
        body = {"lease_token": held["lease_token"], "result": "canary"}
        response = broker.http.post(f"/jobs/{held['id']}/complete", json=body, headers={"X-Request-Id": "the-bug"})
    assert (response.status_code, response.headers["content-type"]) == (500, "application/problem+json")
    assert (response.json()["code"], response.json()["instance"]) == ("internal_error", "the-bug")
    assert response.headers["x-request-id"] == "the-bug"
    logged = [json.loads(line) for line in file.read_text().splitlines()]
    (bug,) = [line for line in logged if line["event"] == "request failed"]
    assert (bug["request_id"], bug["error"]) == ("the-bug", "CheckViolationError")
    assert [secret for secret in ("canary", held["lease_token"]) if secret in response.text + file.read_text()] == []


def test_a_chore_that_meets_a_bug_gives_nothing_away_either(database: TestDatabase, tmp_path: Path) -> None:
    file = tmp_path / "broker.log"
    database.execute("ALTER TABLE jobs ADD CONSTRAINT nothing_ever_crashes CHECK (crashes = 0)")
    with logging_broker(database.dsn, file) as broker:
        api = Api(broker.http, "chores")
        api.enqueue(payload="canary")
        held = api.claim_one()
        database.age(held["id"], 120)
        wait_until(lambda: "chore failed" in file.read_text())
    assert [secret for secret in ("canary", held["lease_token"]) if secret in file.read_text()] == []
