"""Every available Postgres version: the schema migrates up, down and up, and jobs run on it.

The end of the test run lists the missing versions."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.db import migrations
from app.db.embedded.binaries import version_of
from app.db.embedded.server import find_binaries
from tests.api_client import Api
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import server
from tests.versions import AVAILABLE_VERSIONS


@pytest.fixture(scope="module", params=AVAILABLE_VERSIONS, ids=lambda version: f"postgres {version}")
def dsn(request: pytest.FixtureRequest) -> Iterator[str]:
    """A migrated database on each available version.

    Its folder is readable by all users (0755), because under root Postgres runs as another user."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        patch.setattr("app.db.embedded.server.find_binaries", lambda: AVAILABLE_VERSIONS[request.param])
        with server(Path(folder) / "postgres") as dsn:
            migrations.upgrade(dsn)
            yield dsn


def test_embedded_version_is_available() -> None:
    assert version_of(find_binaries()) in AVAILABLE_VERSIONS


def test_schema_migrates_down_and_up_again(dsn: str) -> None:
    migrations.downgrade(dsn, "base")
    migrations.upgrade(dsn)


def test_jobs_complete_and_dead_letters_are_replayed(dsn: str) -> None:
    with threaded_broker(TEST_SETTINGS, dsn) as broker:
        api = Api(broker.http, "life")
        assert api.get("/readyz")["ready"]
        complete_job(api)
        fail_and_replay(api)
        assert api.get("/queues/life/stats")["counts"]["completed"] == 2


def complete_job(api: Api) -> None:
    later = api.enqueue(delay_seconds=60)
    api.post(f"/jobs/{later['id']}/run-now", {})
    job = api.claim_one(worker_id="w")
    assert api.heartbeat("w", job)["leases"][0]["status"] == "extended"
    assert api.complete(job, result={"sent": True})["state"] == "completed"
    assert api.job(later["id"])["result"] == {"sent": True}


def fail_and_replay(api: Api) -> None:
    api.enqueue()
    assert api.fail(api.claim_one(), retryable=False)["state"] == "dead"
    (letter,) = api.get("/dead-letters")["items"]
    assert api.post("/dead-letters/replay", {"filter": {"queue": api.queue}})["replayed"] == 1
    job = api.claim_one()
    assert job["id"] == letter["id"]
    api.complete(job)
