"""Internal errors, caused by constraints that the broker does not know.

The response is a problem, and neither the response nor the log contains data of the row.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api_client import Api
from tests.conftest import wait_until
from tests.contract.test_logs import logging_broker
from tests.database import Loop, TestDatabase, create_database

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def database(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    """A database in which no job can be completed.

    The error of Postgres has a DETAIL with the complete row.
    """
    database = TestDatabase(create_database(postgres, loop, "bugs"), loop)
    database.execute("ALTER TABLE finished_jobs ADD CONSTRAINT nothing_is_ever_finished CHECK (job_type = 'other')")
    yield database
    database.close()


def test_internal_error_of_a_request_reveals_no_row_data(database: TestDatabase, tmp_path: Path) -> None:
    file = tmp_path / "broker.log"
    with logging_broker(database.dsn, file) as broker:
        api = Api(broker.http, "errors")
        api.enqueue(payload="canary")
        job = api.claim_one()
        body = {"lease_token": job["lease_token"], "result": "canary"}
        response = broker.http.post(f"/jobs/{job['id']}/complete", json=body, headers={"X-Request-Id": "the-bug"})
    assert (response.status_code, response.headers["content-type"]) == (500, "application/problem+json")
    assert (response.json()["code"], response.json()["instance"]) == ("internal_error", "the-bug")
    assert response.headers["x-request-id"] == "the-bug"
    logged = [json.loads(line) for line in file.read_text().splitlines()]
    (error_line,) = [line for line in logged if line["event"] == "request failed"]
    assert (error_line["request_id"], error_line["error"]) == ("the-bug", "CheckViolationError")
    assert [secret for secret in ("canary", job["lease_token"]) if secret in response.text + file.read_text()] == []


def test_internal_error_of_a_service_reveals_no_row_data(database: TestDatabase, tmp_path: Path) -> None:
    file = tmp_path / "broker.log"
    database.execute("ALTER TABLE jobs ADD CONSTRAINT nothing_ever_crashes CHECK (crashes = 0)")
    with logging_broker(database.dsn, file) as broker:
        api = Api(broker.http, "services")
        api.enqueue(payload="canary")
        job = api.claim_one()
        database.age(job["id"], 120)
        wait_until(lambda: "service failed" in file.read_text())
    assert [secret for secret in ("canary", job["lease_token"]) if secret in file.read_text()] == []
