"""One request and its response: uvicorn's cycle, but with head and body in one write.

Each write wakes the client. With two writes it reads half a response and waits again. Measured
with 64 connections on 2 cores: 281 µs a request with two writes, 230 µs with one.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeAlias, cast
from urllib.parse import unquote

import httptools
from starlette.types import Scope
from uvicorn._types import ASGI3Application, ASGISendEvent, HTTPResponseBodyEvent, HTTPResponseStartEvent
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from app.server.client import Client

FastHandler: TypeAlias = "Callable[[Exchange], Coroutine[Any, Any, None] | None]"

_ENCODED_SLASH = re.compile("%2f", re.IGNORECASE)
_HEADERS_FOR_UVICORN = frozenset([b"connection", b"transfer-encoding"])


class Exchange(RequestResponseCycle):
    match_fast_route: FastHandler
    _head: HTTPResponseStartEvent | None = None

    @property
    def asgi_scope(self) -> Scope:
        """The ASGI scope, with the framework's type."""
        return cast(Scope, self.scope)

    def run_asgi(self, app: ASGI3Application) -> Coroutine[Any, Any, None]:
        """Runs the fast route of the request, if there is one, instead of the ASGI app."""
        return self.match_fast_route(self) or super().run_asgi(app)

    async def send(self, message: ASGISendEvent) -> None:
        """Keeps the head of the response until its body comes, and then writes both at once."""
        if message["type"] == "http.response.start" and not self.response_started:
            self._head = message
            return
        head, self._head = self._head, None
        if head is not None and self._is_complete(head, cast(HTTPResponseBodyEvent, message)):
            await self.send_response(head["status"], head["headers"], cast(HTTPResponseBodyEvent, message)["body"])
            return
        if head is not None:
            await super().send(head)
        await super().send(message)

    def _is_complete(self, head: HTTPResponseStartEvent, body: HTTPResponseBodyEvent) -> bool:
        """Whether `send_response` can write it: the whole body, with its length.

        uvicorn's code sends the others: to HEAD, in chunks, or with a Connection header.
        """
        names = {name for name, _ in head["headers"]}
        return (
            not body.get("more_body")
            and b"content-length" in names
            and _HEADERS_FOR_UVICORN.isdisjoint(names)
            and self.scope["method"] != "HEAD"
        )

    async def send_response(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Writes a complete response in one write."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        lines = [b"%b: %b\r\n" % header for header in (*self.default_headers, *headers)]
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        head = STATUS_LINE[status] + b"".join(lines)
        if head.count(b"\n") != len(lines) + 1:
            raise RuntimeError("line break in a response header")
        self.response_started = self.response_complete = True
        self.waiting_for_100_continue = False
        self.transport.write(b"%b\r\n%b" % (head, body))
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    def disconnect(self) -> None:
        """Notifies the handler that the client has disconnected. Its response is discarded."""
        if self.response_complete:
            return
        self.disconnected = True
        self.body.clear()
        self.message_event.set()
        client: Client | None = self.scope["state"].get("client")  # None if the request has not started
        if client is not None:
            client.disconnect()


def decode_path(path: str) -> str:
    """Percent-decodes the path, except slashes.

    An encoded slash stays encoded, because it is part of a name and must not lead to another route.
    """
    return unquote(_ENCODED_SLASH.sub("%252F", path))


def start_exchange(connection: HttpToolsProtocol, version: str, match_fast_route: FastHandler) -> Exchange:
    """Creates the exchange when the head of a request is complete, as uvicorn does."""
    target, query = connection.url, b""
    if not target.startswith(b"/") or b"?" in target:
        url = httptools.parse_url(target)
        target, query = url.path, url.query or b""
    path = target.decode("ascii")
    scope = connection.scope
    scope["method"] = connection.parser.get_method().decode("ascii")
    scope["http_version"] = version
    scope["path"] = decode_path(path) if "%" in path else path
    scope["raw_path"] = target
    scope["query_string"] = query
    exchange = Exchange(
        scope=scope,
        transport=connection.transport,
        flow=connection.flow,
        logger=connection.logger,
        access_logger=connection.access_logger,
        access_log=connection.access_log,
        default_headers=connection.server_state.default_headers,
        message_event=asyncio.Event(),
        expect_100_continue=connection.expect_100_continue,
        keep_alive=version != "1.0" and connection.parser.should_keep_alive(),
        on_response=connection.on_response_complete,
    )
    exchange.match_fast_route = match_fast_route
    return exchange
