"""A full disk: a clear error, no partial write, and normal service when there is space again.

Collected only where a disk can be mounted.
"""

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.api_client import Api, Json
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import Loop
from tests.faults.failover.disk import Disk, mounted_disk, run
from tests.faults.failover.server import Server

Eventually = Callable[[Callable[[], Any]], Any]

BIG = {"queue": "disk", "job_type": "test", "payload": secrets.token_hex(100_000)}  # cannot be compressed


@pytest.fixture
def small_disk() -> Iterator[Disk]:
    with mounted_disk(100) as new_disk:
        yield new_disk


@pytest.fixture
def api(server: Server) -> Iterator[Api]:
    with threaded_broker(TEST_SETTINGS, server.dsn) as broker:
        yield Api(broker.http, "disk")


@pytest.fixture
def server(request: pytest.FixtureRequest, template: Server, small_disk: Disk) -> Iterator[Server]:
    """A server with its tables, or its WAL, on the small disk.

    The rest is on another disk with free space.
    """
    server = template.copy(f"full-{request.param}")
    part = server.data / {"tables": "base", "wal": "pg_wal"}[request.param]
    run("mv", part, small_disk.mounted)
    part.symlink_to(small_disk.mounted / part.name)
    server.start({"max_wal_size": "8MB", "min_wal_size": "2MB"})
    yield server
    server.kill()


def enqueue_until_refused(api: Api) -> Json:
    """Enqueues batches of ten until one is rejected."""
    while (response := api.http.post("/jobs/batch", json={"jobs": [BIG] * 10})).status_code == 201:
        pass
    assert (response.status_code, response.json()["code"]) == (503, "database_unavailable"), response.text
    problem: Json = response.json()
    return problem


def is_ready(api: Api, server: Server) -> bool:
    """Starts the server if it has exited: its crash recovery may have run out of space just before
    space was freed.
    """
    if not server.is_running:
        server.start()
    return bool(api.http.get("/readyz").status_code == 200)


# Without space for its WAL the whole server stops, at any point of a statement.
@pytest.mark.parametrize(
    ("server", "outcomes"),
    [("tables", {"not_done"}), ("wal", {"not_done", "unknown"})],
    indirect=["server"],
    ids=["tables", "wal"],
)
def test_full_disk_is_reported_and_leaves_no_partial_batch(
    api: Api, server: Server, outcomes: set[str], small_disk: Disk, loop: Loop, eventually: Eventually
) -> None:
    acknowledged = api.enqueue_many(5)
    small_disk.fill()
    assert enqueue_until_refused(api)["outcome"] in outcomes
    small_disk.free_space()
    eventually(lambda: is_ready(api, server))
    assert server.open(loop).value("SELECT count(*) % 10 FROM jobs") == 5
    assert api.claim_one()["id"] == acknowledged[0]
    assert api.enqueue()["state"] == "ready"
