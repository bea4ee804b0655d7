"""Schedules over HTTP, and time that is moved by moving them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from app.broker import Broker
from app.schedules.enqueuer import PeriodicEnqueuer
from tests.api import Api, Json, when
from tests.conftest import wait_until
from tests.database import TestDatabase

HOUR = 3600


class Schedules:
    """What an operator does with schedules. They run hourly and enqueue a job of this test's queue, unless they say otherwise."""

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
        found: Json = self.api.get(f"/schedules/{name}")
        return found

    def post(self, verb: str, name: str = "s", *, status: int = 200) -> Json:
        answer: Json = self.api.post(f"/schedules/{name}/{verb}", status=status)
        return answer

    def send(self, method: str, path: str, body: Json | None = None, *, status: int) -> Json:
        response = self.api.http.request(method, path, json=body)
        assert response.status_code == status, response.text
        answer: Json = response.json()
        return answer

    def age(self, seconds: float, name: str = "s") -> None:
        """As if everything that happened to the schedule had happened that much earlier."""
        self.db.execute(
            """
            UPDATE schedules
            SET created_at = created_at - make_interval(secs => $2), next_run_at = next_run_at - make_interval(secs => $2)
            WHERE name = $1
            """,
            name,
            float(seconds),
        )

    def jobs(self, **params: Any) -> list[Json]:
        """Of this test's queue, oldest first."""
        return [job for page in self.api.pages("/jobs", queue=self.api.queue, order="asc", **params) for job in page]

    def gone_on(self, name: str = "s") -> Json:
        """Waits until what was due has been fired or skipped."""

        def is_ahead() -> Json | None:
            seen = self.get(name)
            return seen if "next_run_at" not in seen or when(seen["next_run_at"]) > when(self.db.instant(0)) else None

        found: Json = wait_until(is_ahead)
        return found


@contextmanager
def refused(db: TestDatabase, schedule: str) -> Iterator[None]:
    """Postgres takes no job of this schedule."""
    db.execute(f"ALTER TABLE jobs ADD CONSTRAINT refused CHECK (schedule IS DISTINCT FROM '{schedule}') NOT VALID")
    try:
        yield
    finally:
        db.execute("ALTER TABLE jobs DROP CONSTRAINT refused")


@pytest.fixture
def schedules(api: Api, db: TestDatabase) -> Iterator[Schedules]:
    """None at first, and none is left to fire in other tests."""
    db.execute("DELETE FROM schedules")
    yield Schedules(api, db)
    db.execute("DELETE FROM schedules")


@pytest.fixture
def periodic_enqueuer(broker_services: Broker) -> PeriodicEnqueuer:
    """Of a broker that serves nobody and has no chores."""
    return broker_services.periodic_enqueuer
