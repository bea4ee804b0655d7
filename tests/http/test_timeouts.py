"""Timeouts: idle clients are disconnected, slow clients that make progress are served.

See docs/reliability/faults.md#a21. The timeouts in these tests are short.
"""

import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.api_client import Api
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.http.conftest import Connect, connections
from tests.http.raw_connection import GET, check_error_response, chunk, chunked, post
from tests.polls import metric_value
from tests.table import every_case

Eventually = Callable[[Callable[[], Any]], Any]

INCOMPLETE = {
    "nothing at all": b"",
    "half a request line": b"GET /liv",
    "half a head": b"GET /livez HTTP/1.1\r\nHost: te",
    "no end of the head": b"GET /livez HTTP/1.1\r\nHost: test\r\n",
    "empty lines": b"\r\n\r\n",
    "no body": post("/jobs", b"{}")[:-2],
    "half a body": post("/jobs", b"{}")[:-1],
    "half a chunk": chunked("/jobs") + b"5\r\n{",
    "no last chunk": chunked("/jobs") + chunk(b"{}"),
}


def test_incomplete_request_times_out_with_408(connect_short_timeout: Connect) -> None:
    """All requests wait for their timeout at the same time."""
    incomplete = {name: connect_short_timeout() for name in INCOMPLETE}
    for name, connection in incomplete.items():
        connection.send(INCOMPLETE[name])
    with every_case() as case:
        for name, connection in incomplete.items():
            with case(name):
                assert connection.error_response().status == 408


def test_incomplete_request_after_a_complete_one_times_out_with_408(connect_short_timeout: Connect) -> None:
    incomplete = {name: connect_short_timeout() for name in ("half a head", "half a body", "half a chunk")}
    for name, connection in incomplete.items():
        connection.send(GET + INCOMPLETE[name])
    with every_case() as case:
        for name, connection in incomplete.items():
            with case(name):
                first, late = connection.responses()
                assert (first.status, late.status) == (200, 408)
                check_error_response(late)


@pytest.mark.slow
@pytest.mark.parametrize(
    "start", [b"GET /livez HTTP/1.1\r\nX-Drop: ", chunked("/jobs") + b"fffff\r\n"], ids=["head", "body"]
)
def test_request_that_arrives_byte_by_byte_times_out(
    start: bytes, short_timeout_broker: RunningBroker, connect_short_timeout: Connect
) -> None:
    before = metric_value(short_timeout_broker.http, 'edge_refusals_total{code="request_timeout"}')
    connection = connect_short_timeout()
    connection.send(start)
    with pytest.raises(ConnectionError):
        drip_forever(connection.socket)
    assert metric_value(short_timeout_broker.http, 'edge_refusals_total{code="request_timeout"}') == before + 1


def drip_forever(sock: socket.socket) -> None:
    while True:
        sock.sendall(b"x")
        time.sleep(0.02)  # the behaviour under test; nothing waits for it


@pytest.mark.slow
@pytest.mark.parametrize("size", [50_000, 100_000], ids=["small", "large"])
def test_slow_body_that_makes_progress_is_accepted(connect_short_timeout: Connect, size: int) -> None:
    """It takes many times `body_seconds`, and is faster than the minimum rate."""
    connection = connect_short_timeout()
    connection.send(b"POST /jobs/cancel HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n" % size + b'{"ids": []}')
    sent = 11
    timeouts = 0
    while timeouts < 3:
        other = connect_short_timeout()
        other.send(INCOMPLETE["half a body"])
        connection.send(b" " * 8000)
        sent += 8000
        timeouts += other.error_response().status == 408  # a complete timeout has passed
    connection.send(b" " * (size - sent))
    assert connection.response().status == 200


@pytest.mark.slow
@pytest.mark.parametrize("split", [10, -11], ids=["head in two pieces", "body after the head"])
def test_request_in_two_packets_has_no_timeout_while_the_broker_responds(
    connect_short_timeout: Connect, split: int
) -> None:
    """While its poll is parked, the client waits for the broker: longer than all timeouts."""
    connection = connect_short_timeout()
    request = post("/claim", b'{"queues": ["always-empty"], "wait_seconds": 2}')
    connection.send(request[:split])
    time.sleep(0.1)  # so that the broker reads them separately
    connection.send(request[split:])
    assert connection.response().status == 200
    connection.send(GET)
    assert connection.response().status == 200


def test_keep_alive_timeout_closes_the_connection_without_a_response(connect_short_timeout: Connect) -> None:
    connection = connect_short_timeout()
    connection.send(GET)
    assert [response.status for response in connection.responses()] == [200]


@pytest.mark.slow
def test_long_poll_outlasts_all_timeouts(short_timeout_broker: RunningBroker, connect_short_timeout: Connect) -> None:
    """A long poll lasts longer than any timeout."""
    connection = connect_short_timeout()
    connection.send(post("/claim", b'{"queues": ["always-empty"], "wait_seconds": 2}', b"Connection: close"))
    assert [response.status for response in connection.responses()] == [200]


@pytest.mark.slow
def test_connections_of_slow_readers_are_reset(
    short_timeout_broker: RunningBroker, connect_short_timeout: Connect, eventually: Eventually, api: Api
) -> None:
    """Each client requests 4 MB, more than the socket buffers hold, and does not read them."""
    jobs = [{"job_type": "test", "queue": api.queue, "payload": "x" * 100_000}] * 40
    api.post("/jobs/batch", {"jobs": jobs}, status=201)
    for _ in range(5):
        connection = connect_short_timeout()
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.send(f"GET /jobs?queue={api.queue} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
    eventually(lambda: metric_value(short_timeout_broker.http, "connections") > 5)
    eventually(lambda: metric_value(short_timeout_broker.http, "connections") <= 1)


@pytest.mark.slow
def test_a_thousand_slow_clients_do_not_affect_others(dsn: str) -> None:
    with (
        threaded_broker(TEST_SETTINGS.model_copy(update={"header_seconds": 60.0}), dsn) as broker,
        connections(broker.base) as connect,
    ):
        for start in list(INCOMPLETE.values())[:4] * 250:
            connect().send(start)
        assert [broker.http.get("/livez").status_code for _ in range(200)] == [200] * 200
        assert metric_value(broker.http, "connections") == 1001  # all of them stayed connected


def test_each_of_many_slow_clients_gets_408(connect_short_timeout: Connect) -> None:
    slow = [connect_short_timeout() for _ in range(300)]
    for number, connection in enumerate(slow):
        connection.send(list(INCOMPLETE.values())[number % len(INCOMPLETE)])
    assert {connection.error_response().status for connection in slow} == {408}
