"""How much a client may send: heads, URLs, bodies; and that it hears so, even while it is still sending (A22, A24)."""

import pytest

from tests.api import Api
from tests.broker import RunningBroker
from tests.edge.conftest import Connect, connections
from tests.edge.raw import GET, Raw, chunk, chunked, post

MB = 1024 * 1024
ENDLESS = 64  # MB; more than any buffer on the way holds, so whoever sends it sends to somebody who reads


def head(*lines: bytes, url: bytes = b"/livez") -> bytes:
    return b"GET %s HTTP/1.1\r\nHost: test\r\n" % url + b"".join(line + b"\r\n" for line in lines)


LARGE = {
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


@pytest.mark.parametrize("name", LARGE)
def test_too_large_a_head_is_refused(name: str, connect: Connect) -> None:
    sent, status = LARGE[name]
    raw = connect()
    raw.send(sent)
    assert raw.refusal().status == status


@pytest.mark.parametrize("name", ["a header of 1 MB", "a URL of 200 kB", "one trailer without end"])
def test_it_is_refused_in_small_packets_before_its_end(name: str, connect: Connect) -> None:
    sent, status = LARGE[name]
    raw = connect()
    raw.send(*[sent[at : at + 1000] for at in range(0, 100_000, 1000)])
    assert raw.refusal().status == status


def test_as_much_as_is_allowed_is_taken(connect: Connect) -> None:
    raw = connect()
    raw.send(head(*[b"X-Many: " + b"x" * 250] * 99) + b"\r\n")
    assert raw.answer().status == 200
    raw.send(head(url=b"/" + b"x" * 16_000) + b"\r\n")
    assert raw.answer().status == 404


def test_a_body_that_says_it_is_too_large_is_refused_while_it_comes(connect: Connect) -> None:
    """A close with bytes unread would be a reset, and the answer would never be seen."""
    raw = connect()
    raw.send(b"POST /jobs/batch HTTP/1.1\r\nHost: test\r\nContent-Length: 200000000\r\n\r\n")
    send_much(raw, b" " * MB)
    (answer,) = raw.answers()
    assert (answer.status, answer.headers["connection"], answer.json()["limit"]) == (413, "close", 8 * MB)


def test_a_body_without_end_is_refused_while_it_comes(connect: Connect) -> None:
    raw = connect()
    raw.send(chunked("/jobs/batch"))
    send_much(raw, chunk(b" " * MB))
    (answer,) = raw.answers()
    assert (answer.status, answer.headers["connection"], answer.json()["limit"]) == (413, "close", 8 * MB)


def send_much(raw: Raw, piece: bytes) -> None:
    for _ in range(ENDLESS):
        raw.send(piece)


def test_a_large_body_that_nobody_wants_ends_the_connection(connect: Connect) -> None:
    raw = connect()
    raw.send(post("/no/such/path", b" " * MB) + GET)
    (answer,) = raw.answers()
    assert (answer.status, answer.headers["connection"]) == (404, "close")


def test_a_small_body_that_nobody_wants_does_not(connect: Connect, api: Api) -> None:
    raw = connect()
    whole = post("/no/such/path", b"x" * 1000)
    raw.send(whole[:-500])
    raw.send(whole[-500:] + GET)
    assert [raw.answer().status, raw.answer().status] == [404, 200]


def test_a_client_that_asks_first_is_told_to_go_on(connect: Connect, api: Api) -> None:
    raw = connect()
    whole = post("/jobs/cancel", b'{"ids": []}', b"Expect: 100-continue")
    raw.send(whole[:-11])
    assert raw.answer().status == 100
    raw.send(whole[-11:] + GET)
    assert [raw.answer().status, raw.answer().status] == [200, 200]


def test_a_client_that_asks_first_and_is_refused_may_not_go_on(connect: Connect) -> None:
    """Whether what comes next is the body or another request, nobody could tell."""
    raw = connect()
    raw.send(post("/no/such/path", b'{"ids": []}', b"Expect: 100-continue")[:-11])
    answer = raw.answer()
    raw.send(GET)
    assert (answer.status, answer.headers["connection"], raw.answers()) == (404, "close", [])


def test_bodies_that_wait_for_their_end_share_the_room_that_there_is(narrow_broker: RunningBroker) -> None:
    """The room is 1 MiB. Small bodies need none, and what is let go is free again."""
    with connections(narrow_broker.base) as connect:
        first, second, small = connect(), connect(), connect()
        large = post("/jobs/cancel", b'{"ids": []}' + b" " * 800_000)
        first.send(large[:-1])
        wait_until_read(narrow_broker)
        second.send(large[:-1])
        refused = second.refusal()
        assert (refused.status, refused.json()["code"], refused.json()["outcome"]) == (503, "overloaded", "not_done")
        assert refused.headers["retry-after"] == "1"
        small.send(post("/jobs/cancel", b'{"ids": []}'))
        assert small.answer().status == 200
        first.send(large[-1:])
        assert first.answer().status == 200
        small.send(large)
        assert small.answer().status == 200


def wait_until_read(broker: RunningBroker) -> None:
    """Calls of the same route, which wait for what a body before them waits for: until the caller is known nothing more is read."""
    for _ in range(20):
        assert broker.http.post("/jobs/cancel", json={"ids": []}).status_code == 200
