"""A lean HTTP/1.1 client: prebuilt requests, keep-alive, one request in flight per connection,
minimal parsing.

httpx took 2.5 to 7.5 ms of CPU per request at this concurrency, on cores that the server needs,
too.
"""

import asyncio
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, TypeAlias, TypeVar, cast

HOST = "127.0.0.1"


class Response(NamedTuple):
    status: int
    body: bytes

    def expect(self, status: int) -> bytes:
        """Returns the body. A benchmark must not count rejected requests as jobs."""
        if self.status != status:
            raise UnexpectedResponse(f"status {self.status}, not {status}: {self.body[:500].decode(errors='replace')}")
        return self.body


class UnexpectedResponse(Exception):
    """The status, the length or the result of a response is not the expected one."""


# What one connection does: it yields requests and receives the responses.
Script: TypeAlias = Generator[bytes, Response, None]


class Requests:
    """Builds requests as bytes, with the API key if there is one."""

    def __init__(self, key: str | None = None) -> None:
        self._headers = f"Host: {HOST}\r\nContent-Type: application/json\r\n".encode()
        if key is not None:
            self._headers += f"Authorization: Bearer {key}\r\n".encode()

    def post(self, path: str, body: bytes) -> bytes:
        return b"POST %b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (path.encode(), self._headers, len(body), body)

    def get(self, path: str) -> bytes:
        return b"GET %b HTTP/1.1\r\n%b\r\n" % (path.encode(), self._headers)


class HttpConnection(asyncio.Protocol):
    """One connection. Calls `on_response` with every complete response."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._body_start = self._end_offset = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def write(self, request: bytes) -> None:
        assert self._transport is not None
        self._transport.write(request)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        received = self._received = self._received + data if self._received else data
        if not self._end_offset:
            head = received.find(b"\r\n\r\n")
            if head < 0:
                return
            self._body_start = head + 4
            self._end_offset = head + 4 + _length(received[:head])
        if len(received) >= self._end_offset:
            response = Response(int(received[9:12]), received[self._body_start :])
            self._received, self._end_offset = b"", 0
            self.on_response(response)

    def on_response(self, response: Response) -> None:
        raise NotImplementedError


def _length(head: bytes) -> int:
    _, separator, value = head.lower().partition(b"content-length:")
    if not separator:
        raise UnexpectedResponse(f"an response without a length: {head.decode(errors='replace')}")
    return int(value.partition(b"\r\n")[0])


class ScriptedConnection(HttpConnection):
    """Runs a script. The callback of a response sends the next request, without a future or a task."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self._script = script
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._advance(None)

    def on_response(self, response: Response) -> None:
        self._advance(response)

    def _advance(self, response: Response | None) -> None:
        try:
            self.write(next(self._script) if response is None else self._script.send(response))
        except StopIteration:
            self._end(None)
        except Exception as error:  # the error belongs to the caller that awaits the script
            self._end(error)

    def _end(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None) if error is None else self.done.set_exception(error)
        self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error or ConnectionError("the server closed the connection"))


class Client(HttpConnection):
    """A connection for code that awaits each response."""

    def __init__(self) -> None:
        super().__init__()
        self._response: asyncio.Future[Response] | None = None

    async def send(self, request: bytes) -> Response:
        self._response = asyncio.get_running_loop().create_future()
        self.write(request)
        return await self._response

    def on_response(self, response: Response) -> None:
        if self._response is not None and not self._response.done():
            self._response.set_result(response)

    def connection_lost(self, error: Exception | None) -> None:
        if self._response is not None and not self._response.done():
            self._response.set_exception(error or ConnectionError("the server closed the connection"))


Kind = TypeVar("Kind", bound=HttpConnection)


async def connect(ports: Sequence[int], factories: Sequence[Callable[[], Kind]]) -> list[Kind]:
    """Opens one connection for each factory, spread over the ports in turn."""
    loop = asyncio.get_running_loop()
    return [
        (await loop.create_connection(factory, HOST, ports[n % len(ports)]))[1] for n, factory in enumerate(factories)
    ]
