"""A page of a table is corrupted on disk: the broker reports it, and other pages stay usable."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api_client import Api
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.contract.test_logs import logging_broker
from tests.database import Loop
from tests.faults.failover.server import Server

PAGE = 8192
BIG = "x" * 1800  # four to a page: the first page has jobs of one queue only
LOCATION = "SELECT pg_relation_filepath('jobs') AS file, (ctid::text::point)[0]::int AS page FROM jobs WHERE id = $1"


@pytest.fixture
def server(template: Server) -> Iterator[Server]:
    server = template.copy("corrupted")
    server.start({})
    yield server
    server.stop()


def corrupt_page(server: Server, loop: Loop, job_id: str) -> None:
    """Changes the file while the server is down, because a running server reads the page from
    memory.
    """
    location = server.open(loop).row(LOCATION, job_id)
    server.stop()
    with (server.data / location["file"]).open("r+b") as file:
        file.seek(location["page"] * PAGE + PAGE - 100)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    server.start()


def test_corrupted_page_is_reported_and_other_queues_keep_working(server: Server, loop: Loop, tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    with threaded_broker(TEST_SETTINGS, server.dsn) as broker:
        corrupted = Api(broker.http, "corrupted").enqueue_many(10, payload=BIG)[0]
        Api(broker.http, "intact").enqueue_many(10, payload=BIG)
    corrupt_page(server, loop, corrupted)
    with logging_broker(server.dsn, log) as broker:
        corrupted_queue, intact_queue = Api(broker.http, "corrupted"), Api(broker.http, "intact")
        problem = corrupted_queue.post("/claim", {"queues": ["corrupted"]}, status=500)
        assert problem["code"] == "internal_error"
        assert len(intact_queue.claim(max_jobs=3)["jobs"]) == 3
        assert intact_queue.enqueue()["state"] == "ready"
        assert corrupted_queue.http.get(f"/jobs/{corrupted}").status_code == 500
    assert "DataCorruptedError" in log.read_text()
