"""Offers of another protocol are declined: Java's HttpClient and `curl --http2` offer h2c with a body behind it, and it must arrive."""

import pytest

from tests.api import Api
from tests.edge.conftest import Connect
from tests.edge.raw import GET, chunk, chunked, post

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


def enqueue(api: Api, *headers: bytes) -> bytes:
    return post("/jobs", b'{"job_type": "test", "queue": "%s", "payload": "kept"}' % api.queue.encode(), *headers)


@pytest.mark.parametrize("offer", [H2C, WEBSOCKET], ids=["h2c", "websocket"])
def test_the_body_behind_an_offer_arrives(offer: tuple[bytes, ...], connect: Connect, api: Api) -> None:
    raw = connect()
    raw.send(enqueue(api, *offer))
    answer = raw.answer()
    assert (answer.status, answer.json()["payload"]) == (201, "kept")
    raw.send(GET)
    assert raw.answer().status == 200


def test_it_arrives_wherever_the_packets_end(connect: Connect, api: Api) -> None:
    whole = enqueue(api, *H2C)
    raw = connect()
    for end in range(1, len(whole), 7):
        raw.send(whole[:end])
        api.get("/livez")  # what was sent has been read
        raw.send(whole[end:])
        answer = raw.answer()
        assert (answer.status, answer.json()["payload"]) == (201, "kept"), end


def test_chunks_behind_an_offer_arrive(connect: Connect, api: Api) -> None:
    raw = connect()
    body = b'{"job_type": "test", "queue": "%s", "payload": "kept"}' % api.queue.encode()
    raw.send(chunked("/jobs", *H2C) + chunk(body[:9]) + chunk(body[9:]) + b"0\r\n\r\n")
    answer = raw.answer()
    assert (answer.status, answer.json()["payload"]) == (201, "kept")


def test_offers_sent_ahead_are_each_declined(connect: Connect, api: Api) -> None:
    raw = connect()
    raw.send(enqueue(api, *H2C) * 20 + GET)
    assert [raw.answer().status for _ in range(21)] == [201] * 20 + [200]


@pytest.mark.parametrize("offer", [H2C, WEBSOCKET], ids=["h2c", "websocket"])
def test_an_offer_without_a_body_is_declined(offer: tuple[bytes, ...], connect: Connect) -> None:
    raw = connect()
    raw.send(b"GET /livez HTTP/1.1\r\nHost: test\r\n" + b"\r\n".join(offer) + b"\r\n\r\n")
    assert raw.answer().status == 200


def test_an_offer_hides_nothing(connect: Connect, api: Api) -> None:
    raw = connect()
    raw.send(enqueue(api, b"Host: other", *H2C))
    assert raw.refusal().status == 400


ODD_UPGRADES = {
    "in HTTP/1.0": b"GET /livez HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
    "without a value": b"GET /livez HTTP/1.1\r\nHost: test\r\nConnection: upgrade, close\r\nUpgrade:\r\n\r\n",
    "several": b"GET /livez HTTP/1.1\r\nHost: test\r\nConnection: upgrade, close\r\nUpgrade: a, b\r\nUPGRADE:\tc\r\n\r\n",
    "without Connection": b"GET /livez HTTP/1.1\r\nHost: test\r\nConnection: close\r\nUpgrade: h2c\r\n\r\n",
    "without Upgrade": b"GET /livez HTTP/1.1\r\nHost: test\r\nConnection: upgrade, close\r\n\r\n",
    "of HEAD": b"HEAD /livez HTTP/1.1\r\nHost: test\r\nConnection: upgrade, close\r\nUpgrade: h2c\r\n\r\n",
    "in a trailer": chunked("/jobs/cancel", b"Connection: close, upgrade")
    + chunk(b'{"ids": []}')
    + b"0\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
}


def test_odd_upgrades_are_declined_with_one_response(connect: Connect, api: Api) -> None:
    responses = {}
    for name, request in ODD_UPGRADES.items():
        raw = connect()
        raw.send(request)
        responses[name] = raw.received().count(b"HTTP/1.1 200 OK\r\n")
    assert responses == dict.fromkeys(ODD_UPGRADES, 1)
