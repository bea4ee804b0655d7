"""Memory of responses that clients do not read: one bound for all connections of a process."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.api_client import Api
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import TestDatabase

KIB = 1024
MIB = 1024 * KIB
MAX_UNREAD = 8 * MIB
PAYLOAD = "x" * 200 * KIB
LIST_JOBS = 20
CLIENTS = 40
PIPELINED = 50

LIMITS = {
    "max_unread_bytes": MAX_UNREAD,
    "max_list_bytes": MAX_UNREAD,
    "max_batch_bytes": MAX_UNREAD,
    "body_seconds": 600.0,  # longer than the test: only the bound resets a connection
}

Eventually = Callable[[Callable[[], Any]], Any]


@pytest.fixture
def api(db: TestDatabase, queue: str) -> Iterator[Api]:
    with threaded_broker(TEST_SETTINGS.model_copy(update=LIMITS), db.dsn) as broker:
        yield Api(broker.http, queue)


@pytest.fixture
def connect(api: Api) -> Iterator[Callable[[], socket.socket]]:
    """Opens connections that take in very little before they are read."""
    url = urlsplit(str(api.http.base_url))
    with ExitStack() as opened:

        def connect() -> socket.socket:
            client = opened.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
            client.connect((url.hostname, url.port))
            return client

        yield connect


def metric(api: Api, name: str) -> float:
    lines = api.http.get("/metrics").text.splitlines()
    return float(next(line.split()[-1] for line in lines if line.startswith(f"longshore_{name} ")))


def request(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode()


def received(client: socket.socket) -> int:
    """Reads one response, or as much of it as the broker has sent before it closed. Returns the
    number of bytes."""
    size, expected = 0, None
    while expected is None or size < expected:
        data = client.recv(MIB)
        if not data:
            break
        size += len(data)
        if expected is None:
            head, _, _ = data.partition(b"\r\n\r\n")
            expected = len(head) + 4 + int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return size


@pytest.mark.parametrize("kind", ["lists", "pipelined"])
def test_unread_responses_of_all_connections_have_one_bound(
    kind: str, api: Api, connect: Callable[[], socket.socket], eventually: Eventually
) -> None:
    jobs = [api.enqueue(payload=PAYLOAD) for _ in range(LIST_JOBS)]
    list_path, job_path = f"/jobs?queue={api.queue}&limit={LIST_JOBS}", f"/jobs/{jobs[0]['id']}"
    content = request(list_path) if kind == "lists" else request(job_path) * PIPELINED
    clients = []
    for _ in range(CLIENTS):
        clients.append(connect())
        clients[-1].sendall(content)
        assert metric(api, "unread_response_bytes") <= MAX_UNREAD
    resets = eventually(lambda: metric(api, "connections_reset_total"))
    eventually(lambda: metric(api, "connections") <= CLIENTS + 1 - resets)
    assert metric(api, "unread_response_bytes") <= MAX_UNREAD
    if kind == "lists":  # the first to stall are the first to be reset
        assert received(clients[0]) < received(clients[-1]) > LIST_JOBS * len(PAYLOAD)


def test_client_that_reads_gets_its_response_although_others_do_not_read(
    api: Api, connect: Callable[[], socket.socket]
) -> None:
    for _ in range(LIST_JOBS):
        api.enqueue(payload=PAYLOAD)
    path = f"/jobs?queue={api.queue}&limit={LIST_JOBS}"
    for _ in range(CLIENTS):
        connect().sendall(request(path))
        assert len(api.get(path)["items"]) == LIST_JOBS
    assert metric(api, "connections_reset_total") > 0


def test_unread_small_responses_count_too(
    api: Api, connect: Callable[[], socket.socket], eventually: Eventually
) -> None:
    job_id = api.enqueue(payload=PAYLOAD[: 30 * KIB])["id"]
    client = connect()
    client.sendall(request(f"/jobs/{job_id}") * 100)
    eventually(lambda: metric(api, "unread_response_bytes") > 0)
    client.close()
    eventually(lambda: metric(api, "unread_response_bytes") == 0)
