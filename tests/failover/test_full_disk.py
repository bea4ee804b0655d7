"""The disk is full: a clear answer, nothing half done, and on it goes when there is room. Collected only where a disk can be mounted."""

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.api import Api, Json
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import Loop
from tests.failover.disk import Disk, mounted_disk, run
from tests.failover.server import Server

Eventually = Callable[[Callable[[], Any]], Any]

BIG = {"queue": "disk", "job_type": "test", "payload": secrets.token_hex(100_000)}  # it cannot be packed


@pytest.fixture
def small_disk() -> Iterator[Disk]:
    with mounted_disk(100) as made:
        yield made


@pytest.fixture
def api(broken: Server) -> Iterator[Api]:
    with threaded_broker(TEST_SETTINGS, broken.dsn) as broker:
        yield Api(broker.http, "disk")


@pytest.fixture
def broken(request: pytest.FixtureRequest, template: Server, small_disk: Disk) -> Iterator[Server]:
    """Whose tables, or whose write-ahead log, are on the small disk; the other half is elsewhere and has room."""
    server = template.copy(f"full-{request.param}")
    part = server.data / {"tables": "base", "log": "pg_wal"}[request.param]
    run("mv", part, small_disk.mounted)
    part.symlink_to(small_disk.mounted / part.name)
    server.start({"max_wal_size": "8MB", "min_wal_size": "2MB"})
    yield server
    server.kill()


def refused(api: Api) -> Json:
    """Batches of ten, until one is not taken."""
    while (answer := api.http.post("/jobs/batch", json={"jobs": [BIG] * 10})).status_code == 201:
        pass
    assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable"), answer.text
    problem: Json = answer.json()
    return problem


def is_ready(api: Api, server: Server) -> bool:
    """Starts the server if it has ended: its crash recovery may have run out of room just before there was some, and then it exits."""
    if not server.running:
        server.start()
    return bool(api.http.get("/readyz").status_code == 200)


# Without room for its log the whole server gives up, in the middle of whatever it was doing.
@pytest.mark.parametrize(
    ("broken", "outcomes"),
    [("tables", {"not_done"}), ("log", {"not_done", "unknown"})],
    indirect=["broken"],
    ids=["tables", "log"],
)
def test_full_disk_is_reported_and_leaves_no_partial_batch(
    api: Api, broken: Server, outcomes: set[str], small_disk: Disk, loop: Loop, eventually: Eventually
) -> None:
    acknowledged = api.enqueue_many(5)
    small_disk.fill()
    assert refused(api)["outcome"] in outcomes
    small_disk.free_space()
    eventually(lambda: is_ready(api, broken))
    assert broken.open(loop).value("SELECT count(*) % 10 FROM jobs") == 5
    assert api.claim_one()["id"] == acknowledged[0]
    assert api.enqueue()["state"] == "ready"
