"""Clients that take their time: cut off when they send nothing, heard when they are slow but move (A21). Deadlines here are short."""

import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.api import Api
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import QUICK
from tests.edge.conftest import Connect, connections
from tests.edge.raw import GET, check_refusal, chunk, chunked, post
from tests.polls import counted

Eventually = Callable[[Callable[[], Any]], Any]

SLOW = {
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


@pytest.mark.parametrize("name", SLOW)
def test_whoever_stops_in_the_middle_is_told_and_cut_off(name: str, hasty: Connect) -> None:
    raw = hasty()
    raw.send(SLOW[name])
    assert raw.refusal().status == 408


@pytest.mark.parametrize("name", ["half a head", "half a body", "half a chunk"])
def test_it_makes_no_difference_on_a_connection_that_was_good(name: str, hasty: Connect) -> None:
    raw = hasty()
    raw.send(GET + SLOW[name])
    first, late = raw.answers()
    assert (first.status, late.status) == (200, 408)
    check_refusal(late)


@pytest.mark.parametrize(
    "start", [b"GET /livez HTTP/1.1\r\nX-Drop: ", chunked("/jobs") + b"fffff\r\n"], ids=["head", "body"]
)
def test_a_byte_now_and_then_is_not_enough(start: bytes, hasty_broker: RunningBroker, hasty: Connect) -> None:
    before = counted(hasty_broker.http, 'edge_refusals_total{code="request_timeout"}')
    raw = hasty()
    raw.send(start)
    with pytest.raises(ConnectionError):
        drip_for_ever(raw.socket)
    assert counted(hasty_broker.http, 'edge_refusals_total{code="request_timeout"}') == before + 1


def drip_for_ever(sock: socket.socket) -> None:
    while True:
        sock.sendall(b"x")
        time.sleep(0.02)  # this is the behaviour that is tried, nothing waits for it


def test_a_slow_body_that_moves_is_heard_to_its_end(
    hasty_broker: RunningBroker, hasty: Connect, eventually: Eventually
) -> None:
    """It takes many times `body_seconds`, at more than the slowest pace."""
    raw = hasty()
    raw.send(b"POST /jobs/cancel HTTP/1.1\r\nHost: test\r\nContent-Length: 100000\r\n\r\n" + b'{"ids": []}')
    late = 0
    while late < 3:
        other = hasty()
        other.send(SLOW["half a body"])
        raw.send(b" " * 8000)
        late += other.refusal().status == 408  # a whole deadline has passed
    raw.send(b" " * (100000 - 11 - late * 8000))
    assert raw.answer().status == 200


@pytest.mark.parametrize("piece", [10, -11], ids=["head in two pieces", "body after the head"])
def test_a_request_in_two_pieces_waits_for_nothing_more(hasty: Connect, piece: int) -> None:
    """While its poll is parked it is we who let the client wait: longer than its own deadlines."""
    raw = hasty()
    whole = post("/claim", b'{"queues": ["nobody-fills-this"], "wait_seconds": 2}')
    raw.send(whole[:piece])
    time.sleep(0.1)  # so that they come one after the other
    raw.send(whole[piece:])
    assert raw.answer().status == 200
    raw.send(GET)
    assert raw.answer().status == 200


def test_a_connection_between_requests_is_closed_without_a_word(hasty: Connect) -> None:
    raw = hasty()
    raw.send(GET)
    assert [answer.status for answer in raw.answers()] == [200]


def test_a_request_that_we_keep_waiting_is_not_late(hasty_broker: RunningBroker, hasty: Connect) -> None:
    """A long poll lasts longer than any deadline."""
    raw = hasty()
    raw.send(post("/claim", b'{"queues": ["nobody-fills-this"], "wait_seconds": 2}', b"Connection: close"))
    assert [answer.status for answer in raw.answers()] == [200]


def test_an_answer_that_nobody_takes_is_thrown_away(
    hasty_broker: RunningBroker, hasty: Connect, eventually: Eventually, api: Api
) -> None:
    """4 MB are more than the system's buffers hold; each client asks for them and does not read."""
    jobs = [{"job_type": "test", "queue": api.queue, "payload": "x" * 100_000}] * 40
    api.post("/jobs/batch", {"jobs": jobs}, status=201)
    for _ in range(5):
        raw = hasty()
        raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.send(f"GET /jobs?queue={api.queue} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
    eventually(lambda: counted(hasty_broker.http, "connections") > 5)
    eventually(lambda: counted(hasty_broker.http, "connections") <= 1)


def test_a_thousand_slow_clients_hurt_nobody(dsn: str) -> None:
    with (
        threaded_broker(QUICK.model_copy(update={"header_seconds": 60.0}), dsn) as broker,
        connections(broker.base) as connect,
    ):
        for start in list(SLOW.values())[:4] * 250:
            connect().send(start)
        assert [broker.http.get("/livez").status_code for _ in range(200)] == [200] * 200
        assert counted(broker.http, "connections") == 1001  # they were there all the time


def test_each_of_many_slow_clients_is_told(hasty: Connect) -> None:
    slow = [hasty() for _ in range(300)]
    for number, raw in enumerate(slow):
        raw.send(list(SLOW.values())[number % len(SLOW)])
    assert {raw.refusal().status for raw in slow} == {408}
