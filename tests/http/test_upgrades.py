"""Upgrade headers are ignored.

Java's HttpClient and `curl --http2` offer h2c with a body after it, which must arrive.
"""

import pytest

from tests.api_client import Api
from tests.http.conftest import Connect
from tests.http.raw_connection import GET, chunk, chunked, post

H2C = (
    b"Connection: Upgrade, HTTP2-Settings",
    b"Upgrade: h2c",
    b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
)
WEBSOCKET = (
    b"Connection: Upgrade",
    b"Upgrade: websocket",
    b"Sec-WebSocket-Version: 13",
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)


def enqueue_request(api: Api, *headers: bytes) -> bytes:
    return post("/jobs", b'{"job_type": "test", "queue": "%s", "payload": "kept"}' % api.queue.encode(), *headers)


@pytest.mark.parametrize("upgrade", [H2C, WEBSOCKET], ids=["h2c", "websocket"])
def test_body_after_an_upgrade_header_arrives(upgrade: tuple[bytes, ...], connect: Connect, api: Api) -> None:
    connection = connect()
    connection.send(enqueue_request(api, *upgrade))
    response = connection.response()
    assert (response.status, response.json()["payload"]) == (201, "kept")
    connection.send(GET)
    assert connection.response().status == 200


def test_body_after_an_upgrade_header_arrives_however_packets_are_split(connect: Connect, api: Api) -> None:
    request = enqueue_request(api, *H2C)
    connection = connect()
    for end in range(1, len(request), 7):
        connection.send(request[:end])
        api.get("/livez")  # the broker has read the bytes that were sent
        connection.send(request[end:])
        response = connection.response()
        assert (response.status, response.json()["payload"]) == (201, "kept"), end


def test_chunked_body_after_an_upgrade_header_arrives(connect: Connect, api: Api) -> None:
    connection = connect()
    body = b'{"job_type": "test", "queue": "%s", "payload": "kept"}' % api.queue.encode()
    connection.send(chunked("/jobs", *H2C) + chunk(body[:9]) + chunk(body[9:]) + b"0\r\n\r\n")
    response = connection.response()
    assert (response.status, response.json()["payload"]) == (201, "kept")


def test_upgrade_headers_of_pipelined_requests_are_ignored(connect: Connect, api: Api) -> None:
    connection = connect()
    connection.send(enqueue_request(api, *H2C) * 20 + GET)
    assert [connection.response().status for _ in range(21)] == [201] * 20 + [200]


@pytest.mark.parametrize("upgrade", [H2C, WEBSOCKET], ids=["h2c", "websocket"])
def test_upgrade_header_without_a_body_is_ignored(upgrade: tuple[bytes, ...], connect: Connect) -> None:
    connection = connect()
    connection.send(b"GET /livez HTTP/1.1\r\nHost: test\r\n" + b"\r\n".join(upgrade) + b"\r\n\r\n")
    assert connection.response().status == 200


def test_upgrade_header_does_not_hide_a_second_host_header(connect: Connect, api: Api) -> None:
    connection = connect()
    connection.send(enqueue_request(api, b"Host: other", *H2C))
    assert connection.error_response().status == 400


UNUSUAL_UPGRADES = {
    "in HTTP/1.0": b"GET /livez HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
    "without a value": b"GET /livez HTTP/1.1\r\nHost: test\r\nConnection: upgrade, close\r\nUpgrade:\r\n\r\n",
    "several": b"GET /livez HTTP/1.1\r\nHost: test\r\nConnection: upgrade, close\r\n"
    b"Upgrade: a, b\r\nUPGRADE:\tc\r\n\r\n",
    "without Connection": b"GET /livez HTTP/1.1\r\nHost: test\r\nConnection: close\r\nUpgrade: h2c\r\n\r\n",
    "without Upgrade": b"GET /livez HTTP/1.1\r\nHost: test\r\nConnection: upgrade, close\r\n\r\n",
    "of HEAD": b"HEAD /livez HTTP/1.1\r\nHost: test\r\nConnection: upgrade, close\r\nUpgrade: h2c\r\n\r\n",
    "in a trailer": chunked("/jobs/cancel", b"Connection: close, upgrade")
    + chunk(b'{"ids": []}')
    + b"0\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
}


def test_request_with_unusual_upgrade_headers_gets_one_response(connect: Connect, api: Api) -> None:
    responses = {}
    for name, request in UNUSUAL_UPGRADES.items():
        connection = connect()
        connection.send(request)
        responses[name] = connection.received().count(b"HTTP/1.1 200 OK\r\n")
    assert responses == dict.fromkeys(UNUSUAL_UPGRADES, 1)
