"""One request, its response, and the client that sent it.

The connection adds the body of the request as it arrives, and the handler waits for it. The
response is sent in one write, because each write wakes the client: with two writes it reads half a
response and waits again. Measured with 64 connections on 2 cores: 281 µs a request with two writes,
230 µs with one.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from fastapi import Request
from starlette.types import Scope

from app.errors import BadRequest, Problem
from app.server.limits import SMALL_BODY, UNCOUNTED_BYTES, ConnectionLimits, Header

if TYPE_CHECKING:
    from app.server.connection import HardenedConnection


class Client:
    """The client of one request.

    A handler is never cancelled when its client disconnects. It observes `disconnected` instead, a
    future that is done as soon as the connection has noticed.
    """

    def __init__(self, connection: "HardenedConnection | None" = None) -> None:
        """Without a connection: the client is in this process."""
        self._connection = connection
        self.disconnected: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_disconnected(self) -> bool:
        """Whether the client has disconnected, or could disconnect unnoticed.

        A client can pipeline so much input that the connection stops reading. Then the connection
        notices no disconnect, and a job delivered to this client could be lost.
        """
        return self.disconnected.done() or (self._connection is not None and self._connection.is_read_paused)

    def disconnect(self) -> None:
        """Marks the client as disconnected. The connection calls this."""
        if not self.disconnected.done():
            self.disconnected.set_result(None)


class Exchange:
    """One request and its response.

    `is_early`: the request starts before its body is complete, because that is large or awaits
    `100 Continue`. Before its handler calls `receive`, the caller may not be authenticated yet:
    until then the connection reads no more than `SMALL_BODY` bytes ahead.
    """

    def __init__(
        self,
        connection: "HardenedConnection",
        limits: ConnectionLimits,
        scope: Scope,
        *,
        keep_alive: bool,
        body_bytes: int | None,
        expect: bool,
    ) -> None:
        """`body_bytes` is None for a chunked body. `expect`: the client awaits `100 Continue`."""
        self._connection = connection
        self._limits = limits
        self._scope = scope
        self.client = Client(connection)
        self.keep_alive = keep_alive
        self.is_early = expect or body_bytes is None or body_bytes > SMALL_BODY
        self.is_complete = False  # the request
        self.is_answered = self.is_disconnected = False
        self._expect = expect
        self._declared_bytes = body_bytes or 0
        self._max_bytes = SMALL_BODY
        self._counted_bytes = self._seen_bytes = 0
        self._body: list[bytes] = []
        self.received_bytes = 0
        self._waiter: asyncio.Future[None] | None = None

    # For the handler

    async def receive(self, max_bytes: int) -> bool:
        """Waits until the body is complete. Returns False as soon as it has more than `max_bytes`.

        An endless body then costs no more memory than the largest allowed one.
        """
        self._max_bytes = max_bytes
        if self._declared_bytes > max_bytes:
            return False
        if not self.is_complete and not self.is_disconnected and self.received_bytes <= max_bytes:
            await self._wait()
        if self.is_disconnected and not self.is_complete:
            raise BadRequest("the client disconnected before the body was complete")
        return self.received_bytes <= max_bytes

    async def wait_for_disconnect(self) -> None:
        if not self.is_disconnected:
            await self._wait()

    async def _wait(self) -> None:
        if self._expect:
            self._expect = False
            self._connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._connection.resume_reading()
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def take_body(self) -> list[bytes]:
        """Returns the body and drops it here, so that it is in memory only once.

        In pieces: to join 8 MB takes 4 ms, during which no other request is served.
        """
        body, self._body = self._body, []
        return body

    async def respond(self, status: int, headers: Iterable[Header], body: bytes) -> None:
        """Sends the response, unless the client has disconnected.

        If the request is not complete, the connection cannot be used for another one.
        """
        await self._connection.drain()
        if self.is_disconnected:
            return
        self.keep_alive = self.keep_alive and self.is_complete
        close = () if self.keep_alive else ((b"connection", b"close"),)
        self._connection.send(status, (*headers, *close), body)
        self.is_answered = True

    async def send_more(self, body: bytes) -> None:
        """Sends another piece of a response whose head has the length of all pieces."""
        await self._connection.drain()
        self._connection.write(body)

    # For the connection

    def take_scope(self) -> Scope:
        """Returns the scope and drops it here: it refers to this object, a reference cycle."""
        scope = self._scope
        del self._scope
        return scope

    def add(self, data: bytes) -> Problem | None:
        """Adds to the body. Returns an error if too many bytes are buffered in this process."""
        self._body.append(data)
        self.received_bytes += len(data)
        size = self.received_bytes
        if size > self._max_bytes:
            self._connection.pause_reading()
            self._wake()
        if size <= (SMALL_BODY if self.is_early else UNCOUNTED_BYTES):
            return None
        added, self._counted_bytes = size - self._counted_bytes, size
        return self._limits.count_buffered(added)

    def complete(self) -> None:
        self.is_complete = True
        self._wake()
        if not self.is_early:
            self.release()

    def has_progressed(self, min_bytes: float) -> bool:
        """Whether so many bytes were added since the last call, or the client awaits `100 Continue`."""
        added, self._seen_bytes = self.received_bytes - self._seen_bytes, self.received_bytes
        return added >= min_bytes or self._expect

    def close_after_response(self) -> None:
        self.keep_alive = False

    def disconnect(self) -> None:
        """Notifies the handler that the client has disconnected. Its response is discarded."""
        if self.is_answered or self.is_disconnected:
            return
        self.is_disconnected = True
        if not self.is_complete:
            self._body.clear()
        self.release()
        self._wake()
        self.client.disconnect()

    def release(self) -> None:
        """Stops counting the body as buffered."""
        self._limits.uncount_buffered(self._counted_bytes)
        self._counted_bytes = 0

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Router(Protocol):
    def handle(self, scope: Scope, exchange: Exchange) -> Coroutine[Any, Any, None]:
        """Returns a coroutine that handles the request and sends the response."""
        ...


def get_exchange(request: Request) -> Exchange:
    exchange: Exchange = request.scope["state"]["exchange"]
    return exchange


def get_client(request: Request) -> Client:
    return get_exchange(request).client
