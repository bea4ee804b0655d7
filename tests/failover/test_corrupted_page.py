"""A page of a table is damaged on disk: that is said, not swallowed, and other pages go on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api import Api
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.contract.test_logs import logging_broker
from tests.database import Loop
from tests.failover.server import Server

PAGE = 8192
BIG = "x" * 1800  # four to a page: the first page has jobs of one queue alone
PLACE = "SELECT pg_relation_filepath('jobs') AS file, (ctid::text::point)[0]::int AS page FROM jobs WHERE id = $1"


@pytest.fixture
def server(template: Server) -> Iterator[Server]:
    server = template.copy("damaged")
    server.start({})
    yield server
    server.stop()


def damage(server: Server, loop: Loop, job_id: str) -> None:
    """While the server is down: what it has in memory is not read again."""
    place = server.open(loop).row(PLACE, job_id)
    server.stop()
    with (server.data / place["file"]).open("r+b") as file:
        file.seek(place["page"] * PAGE + PAGE - 100)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    server.start()


def test_corrupted_page_is_reported_and_other_queues_keep_working(server: Server, loop: Loop, tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    with threaded_broker(TEST_SETTINGS, server.dsn) as broker:
        hit = Api(broker.http, "hit").enqueue_many(10, payload=BIG)[0]
        Api(broker.http, "spared").enqueue_many(10, payload=BIG)
    damage(server, loop, hit)
    with logging_broker(server.dsn, log) as broker:
        hurt, spared = Api(broker.http, "hit"), Api(broker.http, "spared")
        answer = hurt.post("/claim", {"queues": ["hit"]}, status=500)
        assert answer["code"] == "internal_error"
        assert len(spared.claim(max_jobs=3)["jobs"]) == 3
        assert spared.enqueue()["state"] == "ready"
        assert hurt.http.get(f"/jobs/{hit}").status_code == 500
    assert "DataCorruptedError" in log.read_text()
