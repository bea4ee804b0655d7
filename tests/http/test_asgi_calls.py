"""Requests that an ASGI app handles with its own receive and send, and apps that fail."""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from app.metrics import Metrics
from app.server.asgi import call_asgi
from app.server.exchange import Exchange
from app.server.limits import ConnectionLimits
from app.server.server import make_connection_class
from tests.conftest import TEST_SETTINGS, wait_until
from tests.http.conftest import Connect, connections
from tests.http.raw_connection import GET, RawResponse, chunk, chunked, post


class AppDispatcher:
    """Gives every request to one app."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def handle(self, scope: Scope, exchange: Exchange) -> Coroutine[Any, Any, None]:
        return call_asgi(self._app, scope, exchange)


@contextmanager
def serving(app: ASGIApp) -> Iterator[Connect]:
    """Serves the app with our connections, on a real socket in a thread."""
    connection_class = make_connection_class(ConnectionLimits(TEST_SETTINGS, Metrics(), 100), AppDispatcher(app))
    server = uvicorn.Server(uvicorn.Config(app, port=0, http=connection_class, lifespan="off", log_config=None))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started)
        with connections(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}") as connect:
            yield connect
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def responses(app: ASGIApp, request: bytes, count: int) -> list[RawResponse]:
    with serving(app) as connect:
        connection = connect()
        connection.send(request)
        return [connection.response() for _ in range(count)]


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    body = await Request(scope, receive).body()
    await PlainTextResponse(body)(scope, receive, send)


async def stream(scope: Scope, receive: Receive, send: Send) -> None:
    """Sends a body in pieces without its length, and listens for a disconnect in the meantime."""

    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"one ", b"two ", b"three"):
            yield piece
            await asyncio.sleep(0)

    await StreamingResponse(pieces())(scope, receive, send)


def test_app_receives_the_body_of_the_request() -> None:
    requests = post("/", b"plain") + chunked("/") + chunk(b"in ") + chunk(b"chunks") + b"0\r\n\r\n" + GET
    assert [response.body for response in responses(echo, requests, 3)] == [b"plain", b"in chunks", b""]


def test_response_in_pieces_is_sent_with_its_length() -> None:
    first, second = responses(stream, GET + GET, 2)
    assert (first.status, first.headers["content-length"], first.body) == (200, "13", b"one two three")
    assert second.body == first.body


def test_response_to_head_has_the_length_of_the_body_and_no_body() -> None:
    with serving(stream) as connect:
        connection = connect()
        connection.send(b"HEAD / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
        head, _, body = connection.received().partition(b"\r\n\r\n")
    assert b"content-length: 13" in head
    assert body == b""


def test_response_without_content_has_no_length() -> None:
    (response,) = responses(Response(status_code=204), GET, 1)
    assert (response.status, response.headers.get("content-length")) == (204, None)


def test_app_is_notified_of_a_disconnect() -> None:
    messages: list[str] = []

    async def listen(scope: Scope, receive: Receive, send: Send) -> None:
        messages.append((await receive())["type"])
        messages.append((await receive())["type"])

    with serving(listen) as connect:
        connection = connect()
        connection.send(GET)
        wait_until(lambda: messages == ["http.request"])
        connection.close()
        wait_until(lambda: messages == ["http.request", "http.disconnect"])


async def answer_nothing(scope: Scope, receive: Receive, send: Send) -> None:
    pass


async def fail(scope: Scope, receive: Receive, send: Send) -> None:
    raise LookupError


async def fail_in_the_middle(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"half", "more_body": True})
    raise LookupError


async def break_a_line(scope: Scope, receive: Receive, send: Send) -> None:
    await Response(headers={"X-One": "a\r\nX-Two: b"})(scope, receive, send)


@pytest.mark.parametrize("app", [answer_nothing, fail, fail_in_the_middle, break_a_line])
def test_request_that_the_app_does_not_answer_gets_500_and_the_connection_is_closed(app: ASGIApp) -> None:
    with serving(app) as connect:
        connection = connect()
        connection.send(GET + GET)
        assert connection.error_response().status == 500
