"""One client connection: HTTP/1.1 with timeouts and limits, so that the broker needs no proxy in
front.

States of a connection, and the timeout in each state:

    reading head    header timeout
    reading body    body timeout; starts again if the body has grown enough
    responding      none: the client waits for the broker
    keep-alive      keep-alive timeout
    lingering       lingering timeout; the response is sent, input is read and discarded
    closed

Transitions:

    opened       -> reading head   within the limit of connections
    opened       -> lingering      over the limit: 503
    opened       -> closed         over the limit by more than a tenth: reset
    reading head -> reading body   head complete; a request that is not small starts now
    reading head -> lingering      malformed or too large: 400, 414, 431; header timeout: 408
    reading body -> responding     body complete; a small request starts now
    reading body -> lingering      malformed: 400; body timeout: 408; too many buffered bytes: 503;
                                   or an early response was sent before the body was complete
    responding   -> reading head   pipelining: the next request arrives before the response is sent
    responding   -> keep-alive     response sent, no other request has begun
    responding   -> closed         response sent with `Connection: close`
    keep-alive   -> reading head   first byte of the next request
    keep-alive   -> closed         keep-alive timeout, or the broker drains
    lingering    -> closed         the client closes; lingering timeout; or the broker drains
    any          -> closed         the client closes; or it reads its responses too slowly (see
                                   app/server/limits.py)

A small request declares a body of at most 64 KiB, or none, and does not expect `100 Continue`.

With pipelining a connection reads one request while it responds to another. Then the timeout for
the request that is being read applies. Responses are sent in the order of the requests. If a
request is rejected, its error response is sent after the responses to earlier requests.

A client that closes its sending side counts as disconnected (docs/reliability/faults.md#a19). The
broker may still execute the client's request, but sends no response, and ends a parked poll.
"""

import asyncio
from collections.abc import Iterable
from contextvars import Context
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import Scope
from uvicorn.server import ServerState

from app.errors import BadRequest, Overloaded, Problem, RequestTimeout
from app.log import log
from app.server.exchange import Exchange, RequestDispatcher
from app.server.limits import MAX_PIPELINED, SMALL_BODY, ConnectionLimits, Header, SendBuffer, Timeouts, render_head
from app.server.request_parser import RequestParser


class HardenedConnection(asyncio.Protocol):
    """One client connection. app/server/server.py lists what uvicorn requires of this class."""

    transport: asyncio.Transport
    send_buffer: SendBuffer

    def __init__(
        self,
        limits: ConnectionLimits,
        dispatcher: RequestDispatcher,
        *,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._limits = limits
        self._dispatcher = dispatcher
        self._loop = _loop or asyncio.get_running_loop()
        self._state = server_state
        self._connections = cast(set[object], server_state.connections)
        self._app_state = app_state
        self._parser = RequestParser(self, limits)
        self._timeout: Timeouts | None = None  # the queue with this connection; None while responding
        self._incoming: Exchange | None = None  # the request whose body arrives; None for a small request
        self._active: Exchange | None = None  # the request whose handler is running
        self._pipeline: list[tuple[Scope, Exchange]] = []  # requests that wait for the active request
        self._discards_input = self.is_read_paused = False
        self._pending_error: Problem | None = None  # sent when all earlier requests are answered

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.send_buffer = SendBuffer(self.transport, self._limits, self._loop)
        self._connections.add(self)
        count, limit = len(self._connections), self._limits.max_connections
        if count > limit + limit // 10 + 1:
            self.transport.abort()
        elif count - self._limits.lingering_timeouts.length() > limit:
            self._reject(Overloaded(f"the limit of {limit} connections is reached"))
        else:
            self._set_timeout(self._limits.header_timeouts)

    def connection_lost(self, exc: Exception | None) -> None:
        """Notifies the handlers that the client has disconnected, and releases buffered bodies."""
        self._connections.discard(self)
        self._set_timeout(None)
        for exchange in (self._active, self._incoming, *(queued for _, queued in self._pipeline)):
            if exchange is not None:
                exchange.disconnect()
        self._incoming, self._pipeline = None, []
        self.resume_writing()
        self._parser.close()

    def data_received(self, data: bytes) -> None:
        if self._discards_input:
            return
        error = self._parser.feed(data)
        if error is not None:
            self._reject(error)
        elif self._parser.part_changed:
            self._set_timeout(self._current_timeout())

    def shutdown(self) -> None:
        """Closes the connection, at once or after the response to its newest request."""
        newest = self._incoming or (self._pipeline[-1][1] if self._pipeline else self._active)
        if self._parser.has_small_request:
            self._parser.close_after_response()
        elif newest is None or self._is_lingering:
            self.transport.close()
        else:
            newest.close_after_response()

    # Requests, as the parser reads them

    def on_request(self, scope: Scope, body: bytes, *, keep_alive: bool) -> Problem | None:
        """Starts or queues a small request, whose body is complete. Returns an error if the request
        must be rejected."""
        return self._start_or_queue(scope, Exchange(self, self._limits, keep_alive=keep_alive, body=body))

    def on_head(self, scope: Scope, *, keep_alive: bool, declared_bytes: int, expects_continue: bool) -> Problem | None:
        """Starts or queues a request before its body arrives. Returns an error if the request must
        be rejected."""
        self._incoming = Exchange(
            self, self._limits, keep_alive=keep_alive, declared_bytes=declared_bytes, expects_continue=expects_continue
        )
        return self._start_or_queue(scope, self._incoming)

    def on_body(self, data: bytes) -> Problem | None:
        assert self._incoming is not None
        return self._incoming.add(data)

    def on_complete(self) -> None:
        assert self._incoming is not None
        exchange, self._incoming = self._incoming, None
        exchange.complete()

    def _start_or_queue(self, scope: Scope, exchange: Exchange) -> Problem | None:
        """Starts the request, or queues it while the handler of another request is running.

        A connection that does not read cannot notice a disconnect. So the connection keeps reading
        while requests are queued, until their bodies have more than SMALL_BODY bytes.
        """
        scope["state"] = {**self._app_state, "exchange": exchange}
        if self._active is None:
            self._start(scope, exchange)
            return None
        if len(self._pipeline) >= MAX_PIPELINED:
            return BadRequest(f"more than {MAX_PIPELINED} pipelined requests wait for a response")
        self._pipeline.append((scope, exchange))
        if sum(queued.received_bytes for _, queued in self._pipeline) > SMALL_BODY:
            self.pause_reading()
        return None

    # Responses

    def _start(self, scope: Scope, exchange: Exchange) -> None:
        """Starts the handler in an empty context, so that context variables of other requests
        cannot affect it."""
        self._active = exchange
        task = self._loop.create_task(self._dispatcher.handle(scope, exchange), context=Context())
        self._state.tasks.add(task)
        task.add_done_callback(partial(self._on_handled, exchange))

    def _on_handled(self, exchange: Exchange, task: "asyncio.Task[None]") -> None:
        self._state.tasks.discard(task)
        self._active = None
        exchange.release()
        if not exchange.is_answered and not exchange.client.disconnected.done():
            log.error("request not answered", exc_info=None if task.cancelled() else task.exception())
            self._send_error(Problem("the error was logged"))  # a bug: handlers answer every error
        if self.transport.is_closing() or self._is_lingering:
            return
        if not exchange.keep_alive:
            self.transport.close() if exchange.is_complete else self._lingering_close()
            return
        self.resume_reading()
        if self._pipeline:
            self._start(*self._pipeline.pop(0))
        elif self._pending_error is not None:
            self._send_error(self._pending_error)
        elif self._parser.part is None:
            self._set_timeout(self._limits.keep_alive_timeouts)

    # Rejected requests

    def _reject(self, error: Problem) -> None:
        """Rejects the request that is being read, unless it has been answered already.

        Sends the error after earlier responses, and discards further input.
        """
        self._discards_input = True
        self._set_timeout(None)
        self._parser.discard_body()
        rejected, self._incoming = self._incoming, None
        if rejected is not None:
            if rejected.is_answered:
                return  # `_on_handled` closes the connection
            rejected.disconnect()
        self._pipeline = [queued for queued in self._pipeline if queued[1] is not rejected]
        if self._active is None or self._active is rejected:
            self._send_error(error)
        else:
            self._pending_error = error

    def _send_error(self, error: Problem) -> None:
        self.send(*self._limits.error_response(error))
        self._lingering_close()

    def _lingering_close(self) -> None:
        """Closes the sending side. Then reads and discards input until the client closes.

        Closing a socket with unread input sends RST, and a client that is still sending would lose
        our response.
        """
        self._discards_input, self._incoming = True, None
        self.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._set_timeout(self._limits.lingering_timeouts)

    @property
    def _is_lingering(self) -> bool:
        return self._timeout is self._limits.lingering_timeouts

    # Reading and writing, for `Exchange`

    def pause_reading(self) -> None:
        if not self.is_read_paused:
            self.is_read_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self.is_read_paused:
            self.is_read_paused = False
            self.transport.resume_reading()

    def release_body(self) -> None:
        """Stops counting the body of the active request as buffered."""
        if self._active is not None:
            self._active.release()

    def send(self, status: int, headers: Iterable[Header], body: bytes) -> None:
        self.write(render_head(status, (*self._state.default_headers, *headers)) + body)

    def write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    def pause_writing(self) -> None:
        self.send_buffer.stall()

    def resume_writing(self) -> None:
        self.send_buffer.resume()

    # Timeouts

    def _set_timeout(self, queue: Timeouts | None) -> None:
        if self._timeout is not None:
            self._timeout.leave(self)
        self._timeout = queue
        if queue is not None:
            queue.join(self, self._loop.time())

    def _current_timeout(self) -> Timeouts | None:
        """Returns the timeout of the part that is being read. Between two requests, returns None
        while a handler is running, and otherwise the keep-alive timeout."""
        if self._parser.part is not None:
            return self._limits.header_timeouts if self._parser.part == "head" else self._limits.body_timeouts
        return None if self._active is not None else self._limits.keep_alive_timeouts

    def on_header_timeout(self) -> None:
        self._reject(RequestTimeout(f"request line and headers not received within {self._limits.header_seconds} s"))

    def on_body_timeout(self) -> None:
        """Rejects the request, unless its body has grown enough or the broker itself has stopped
        the client from sending: it has paused reading, or has not sent `100 Continue` yet."""
        has_progressed = self._parser.has_progressed(self._limits.min_progress_bytes)
        expects_continue = self._incoming is not None and self._incoming.expects_continue
        if has_progressed or expects_continue or self.is_read_paused:
            self._set_timeout(self._limits.body_timeouts)
        else:
            self._reject(RequestTimeout(f"body not received within {self._limits.body_seconds} s"))
