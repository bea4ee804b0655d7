"""Every Postgres at hand: the schema goes up, down and up, and a job lives on it. What is not at hand is named at the end of a run."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.db import migrations
from app.db.embedded.binaries import version_of
from app.db.embedded.server import find_binaries
from tests.api import Api
from tests.broker import threaded_broker
from tests.conftest import QUICK
from tests.database import server
from tests.versions import AT_HAND


@pytest.fixture(scope="module", params=AT_HAND, ids=lambda version: f"postgres {version}")
def dsn(request: pytest.FixtureRequest) -> Iterator[str]:
    """A migrated database on that Postgres. Its folder is open to others: root starts it as another user."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        patch.setattr("app.db.embedded.server.find_binaries", lambda: AT_HAND[request.param])
        with server(Path(folder) / "postgres") as dsn:
            migrations.upgrade(dsn)
            yield dsn


def test_the_embedded_one_is_among_them() -> None:
    assert version_of(find_binaries()) in AT_HAND


def test_the_schema_goes_down_and_up_again(dsn: str) -> None:
    migrations.downgrade(dsn, "base")
    migrations.upgrade(dsn)


def test_a_job_lives_its_life(dsn: str) -> None:
    with threaded_broker(QUICK, dsn) as broker:
        api = Api(broker.http, "life")
        assert api.get("/readyz")["ready"]
        complete(api)
        die_and_return(api)
        assert api.get("/queues/life/stats")["counts"]["completed"] == 2


def complete(api: Api) -> None:
    later = api.enqueue(delay_seconds=60)
    api.post(f"/jobs/{later['id']}/run-now", {})
    job = api.claim_one(worker_id="w")
    assert api.heartbeat("w", job)["leases"][0]["status"] == "extended"
    assert api.complete(job, result={"sent": True})["state"] == "completed"
    assert api.job(later["id"])["result"] == {"sent": True}


def die_and_return(api: Api) -> None:
    api.enqueue()
    assert api.fail(api.claim_one(), retryable=False)["state"] == "dead"
    (letter,) = api.get("/dead-letters")["items"]
    assert api.post("/dead-letters/replay", {"filter": {"queue": api.queue}})["replayed"] == 1
    job = api.claim_one()
    assert job["id"] == letter["id"]
    api.complete(job)
