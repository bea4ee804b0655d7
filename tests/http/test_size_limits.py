"""Size limits of heads, URLs and bodies.

The client receives the error even while it is still sending: docs/reliability/faults.md#a22 and
docs/reliability/faults.md#a24.
"""

import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from tests.api_client import Api
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.http.conftest import Connect, connections
from tests.http.raw_connection import GET, RawConnection, chunk, chunked, post
from tests.polls import parked_polls
from tests.table import table

MB = 1024 * 1024
UNBOUNDED = 64  # MB; more than all socket buffers hold, so the broker must be reading


def head(*lines: bytes, url: bytes = b"/livez") -> bytes:
    return b"GET %s HTTP/1.1\r\nHost: test\r\n" % url + b"".join(line + b"\r\n" for line in lines)


TOO_LARGE = {
    "a header of 1 MB": (head(b"X-Large: " + b"x" * MB) + b"\r\n", 431),
    "a name of 1 MB": (head(b"x" * MB + b": large") + b"\r\n", 431),
    "20,000 headers": (head(*[b"X-Many: x"] * 20_000) + b"\r\n", 431),
    "101 headers": (head(*[b"X-Many: x"] * 100) + b"\r\n", 431),
    "40 kB in 50 headers": (head(*[b"X-Many: " + b"x" * 800] * 50) + b"\r\n", 431),
    "a URL of 200 kB": (head(url=b"/" + b"x" * 200_000) + b"\r\n", 414),
    "a query of 17 kB": (head(url=b"/jobs?queue=" + b"x" * 17_000) + b"\r\n", 414),
    "trailers without end": (chunked("/jobs") + b"0\r\n" + b"X-Many: x\r\n" * 100_000, 431),
    "one trailer without end": (chunked("/jobs") + b"0\r\nX-Large: " + b"x" * MB, 400),
    "a chunk extension without end": (chunked("/jobs") + b"2;" + b"x" * MB, 400),
    "chunks of one byte": (chunked("/jobs") + chunk(b" ") * 100_000, 400),
}


@table("name", TOO_LARGE)
def test_too_large_head_is_rejected(name: str, connect: Connect) -> None:
    sent, status = TOO_LARGE[name]
    connection = connect()
    connection.send(sent)
    assert connection.error_response().status == status


@table("name", ["a header of 1 MB", "a URL of 200 kB", "one trailer without end"])
def test_too_large_head_in_small_packets_is_rejected_before_its_end(name: str, connect: Connect) -> None:
    sent, status = TOO_LARGE[name]
    connection = connect()
    connection.send(*[sent[start : start + 1000] for start in range(0, 100_000, 1000)])
    assert connection.error_response().status == status


@pytest.mark.parametrize("name", ["a name of 1 MB", "40 kB in 50 headers", "a query of 17 kB"])
def test_pipelined_too_large_head_is_rejected(name: str, connect: Connect) -> None:
    """It may arrive in the same packet as the end of the request before it."""
    sent, status = TOO_LARGE[name]
    connection = connect()
    connection.send(GET + sent)
    assert [response.status for response in connection.responses()] == [200, status]


def test_head_and_url_of_the_maximum_size_are_accepted(connect: Connect) -> None:
    connection = connect()
    connection.send(head(*[b"X-Many: " + b"x" * 250] * 99) + b"\r\n")
    assert connection.response().status == 200
    connection.send(head(url=b"/" + b"x" * 16_000) + b"\r\n")
    assert connection.response().status == 404


def test_too_large_content_length_is_rejected_while_the_body_is_sent(connect: Connect) -> None:
    """Closing with unread input would send RST, and the client would lose the response."""
    connection = connect()
    connection.send(b"POST /jobs/batch HTTP/1.1\r\nHost: test\r\nContent-Length: 200000000\r\n\r\n")
    send_endlessly(connection, b" " * MB)
    (response,) = connection.responses()
    assert (response.status, response.headers["connection"], response.json()["limit"]) == (413, "close", 8 * MB)


def test_unbounded_chunked_body_is_rejected_while_it_is_sent(connect: Connect) -> None:
    connection = connect()
    connection.send(chunked("/jobs/batch"))
    send_endlessly(connection, chunk(b" " * MB))
    (response,) = connection.responses()
    assert (response.status, response.headers["connection"], response.json()["limit"]) == (413, "close", 8 * MB)


def send_endlessly(connection: RawConnection, piece: bytes) -> None:
    for _ in range(UNBOUNDED):
        connection.send(piece)


def test_large_body_to_unknown_path_closes_the_connection(connect: Connect) -> None:
    connection = connect()
    connection.send(post("/no/such/path", b" " * MB) + GET)
    (response,) = connection.responses()
    assert (response.status, response.headers["connection"]) == (404, "close")


def test_small_body_to_unknown_path_keeps_the_connection_alive(connect: Connect, api: Api) -> None:
    connection = connect()
    request = post("/no/such/path", b"x" * 1000)
    connection.send(request[:-500])
    connection.send(request[-500:] + GET)
    assert [connection.response().status, connection.response().status] == [404, 200]


def test_expect_100_continue_is_answered_with_100(connect: Connect, api: Api) -> None:
    connection = connect()
    request = post("/jobs/cancel", b'{"ids": []}', b"Expect: 100-continue")
    connection.send(request[:-11])
    assert connection.response().status == 100
    connection.send(request[-11:] + GET)
    assert [connection.response().status, connection.response().status] == [200, 200]


def test_rejected_expect_100_continue_closes_the_connection(connect: Connect) -> None:
    """The next bytes could be the body or another request: the broker cannot tell."""
    connection = connect()
    connection.send(post("/no/such/path", b'{"ids": []}', b"Expect: 100-continue")[:-11])
    response = connection.response()
    connection.send(GET)
    assert (response.status, response.headers["connection"], connection.responses()) == (404, "close", [])


def test_incomplete_bodies_share_the_buffer_limit(low_limit_broker: RunningBroker) -> None:
    """The limit is 1 MiB. Small bodies do not count, and completed ones are released."""
    with connections(low_limit_broker.base) as connect:
        first, second, small = connect(), connect(), connect()
        large = post("/jobs/cancel", b'{"ids": []}' + b" " * 800_000)
        first.send(large[:-1])
        wait_until_read(low_limit_broker)
        second.send(large[:-1])
        rejected = second.error_response()
        assert (rejected.status, rejected.json()["code"], rejected.json()["outcome"]) == (503, "overloaded", "not_done")
        assert rejected.headers["retry-after"] == "1"
        small.send(post("/jobs/cancel", b'{"ids": []}'))
        assert small.response().status == 200
        first.send(large[-1:])
        assert first.response().status == 200
        small.send(large)
        assert small.response().status == 200


def test_body_of_a_claim_that_waits_after_its_settlements_is_not_buffered(
    low_limit_broker: RunningBroker, eventually: Callable[..., Any]
) -> None:
    """The limit is 1 MiB. The settlements are dropped before the wait."""
    settle = [
        {"job_id": str(uuid4()), "lease_token": "lost", "outcome": "complete", "result": "x" * 200_000}
        for _ in range(4)
    ]
    claim = {"queues": ["always-empty"], "settle": settle, "wait_after_settle": True, "wait_seconds": 25}
    with connections(low_limit_broker.base) as connect:
        for parked in range(3):
            connect().send(post("/claim", json.dumps(claim).encode()))
            eventually(lambda count=parked + 1: parked_polls(low_limit_broker.http) == count)
        large = connect()
        large.send(post("/jobs/cancel", b'{"ids": []}' + b" " * 800_000))
        assert large.response().status == 200


def test_incomplete_small_bodies_are_buffered_until_they_are_complete_or_rejected_or_their_client_has_left(
    dsn: str,
) -> None:
    """The limit is 100 kB. A small body is received before its request starts."""
    limits = {"max_held_bytes": 1, "max_batch_bytes": 100_000, "header_seconds": 60.0, "body_seconds": 60.0}
    small = post("/jobs/cancel", b'{"ids": []}' + b" " * 60_000)
    with (
        threaded_broker(TEST_SETTINGS.model_copy(update=limits), dsn) as broker,
        connections(broker.base) as connect,
    ):
        completed, rejected, abandoned, last = (connect() for _ in range(4))
        completed.send(small[:-1])
        wait_until_read(broker)
        rejected.send(small[:-1])
        assert rejected.error_response().status == 503
        completed.send(small[-1:])
        assert completed.response().status == 200
        abandoned.send(small[:-1])
        wait_until_read(broker)
        abandoned.close()
        wait_until_read(broker)
        last.send(small[:-1])
        wait_until_read(broker)
        last.send(small[-1:])
        assert last.response().status == 200


def wait_until_read(broker: RunningBroker) -> None:
    """Waits until the broker has read the bytes that were sent before.

    Calls the same route, because nothing more of a body is read until its caller is authenticated.
    """
    for _ in range(20):
        assert broker.http.post("/jobs/cancel", json={"ids": []}).status_code == 200
