"""Schedules over HTTP. Tests move time by moving the rows of the schedules."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from app.broker import Broker
from app.schedules.enqueuer import PeriodicEnqueuer
from tests.api_client import Api, Json, parse_time
from tests.conftest import wait_until
from tests.database import TestDatabase

HOUR = 3600


class Schedules:
    """Client for schedules.

    By default they run hourly and enqueue a job into the queue of the test.
    """

    def __init__(self, api: Api, db: TestDatabase) -> None:
        self.api = api
        self.db = db

    def put(self, name: str = "s", *, status: int = 200, job: Json | None = None, **fields: Any) -> Json:
        times = {} if fields.keys() & {"cron", "every_seconds"} else {"every_seconds": HOUR}
        return self.send("PUT", f"/schedules/{name}", self.body(job, **times, **fields), status=status)

    def body(self, job: Json | None = None, **fields: Any) -> Json:
        return {"job": {"queue": self.api.queue, "job_type": "test", **(job or {})}, **fields}

    def delete(self, name: str = "s", *, status: int = 200) -> Json:
        return self.send("DELETE", f"/schedules/{name}", status=status)

    def get(self, name: str = "s") -> Json:
        schedule: Json = self.api.get(f"/schedules/{name}")
        return schedule

    def post(self, verb: str, name: str = "s", *, status: int = 200) -> Json:
        response_json: Json = self.api.post(f"/schedules/{name}/{verb}", status=status)
        return response_json

    def send(self, method: str, path: str, body: Json | None = None, *, status: int) -> Json:
        response = self.api.http.request(method, path, json=body)
        assert response.status_code == status, response.text
        response_json: Json = response.json()
        return response_json

    def age(self, seconds: float, name: str = "s") -> None:
        """Moves the creation and the next run of the schedule into the past."""
        self.db.execute(
            """
            UPDATE schedules
            SET created_at = created_at - make_interval(secs => $2),
                next_run_at = next_run_at - make_interval(secs => $2)
            WHERE name = $1
            """,
            name,
            float(seconds),
        )

    def jobs(self, **params: Any) -> list[Json]:
        """The jobs of the queue of this test, oldest first."""
        return [job for page in self.api.pages("/jobs", queue=self.api.queue, order="asc", **params) for job in page]

    def wait_until_advanced(self, name: str = "s") -> Json:
        """Waits until all due runs have been fired or skipped."""

        def advanced() -> Json | None:
            schedule = self.get(name)
            return (
                schedule
                if "next_run_at" not in schedule or parse_time(schedule["next_run_at"]) > parse_time(self.db.instant(0))
                else None
            )

        schedule: Json = wait_until(advanced)
        return schedule


@contextmanager
def reject_jobs_of(db: TestDatabase, schedule: str) -> Iterator[None]:
    """Makes Postgres reject every job of this schedule."""
    db.execute(f"ALTER TABLE jobs ADD CONSTRAINT rejected CHECK (schedule IS DISTINCT FROM '{schedule}') NOT VALID")
    try:
        yield
    finally:
        db.execute("ALTER TABLE jobs DROP CONSTRAINT rejected")


@pytest.fixture
def schedules(api: Api, db: TestDatabase) -> Iterator[Schedules]:
    """Starts without schedules, and leaves none that could fire in other tests."""
    db.execute("DELETE FROM schedules")
    yield Schedules(api, db)
    db.execute("DELETE FROM schedules")


@pytest.fixture
def periodic_enqueuer(broker_services: Broker) -> PeriodicEnqueuer:
    """The service of a broker without HTTP server and background services."""
    return broker_services.periodic_enqueuer
