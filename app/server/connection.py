"""One client connection: uvicorn's HTTP protocol, hardened to run without a proxy in front.

uvicorn leaves timeouts and limits to a proxy. This class adds them, and makes sure that every
request can be read in one way only (docs/reliability/rules.md#r16). The parser rejects most
ambiguous requests; this module and `limits` reject the others.

States of a connection, and the timeout in each:

    reading head    header timeout
    reading body    body timeout; a body that makes enough progress gets another
    responding      none: the client waits for the broker
    keep-alive      keep-alive timeout
    lingering       lingering timeout; the response is sent, input is read and discarded
    closed

Transitions:

    opened       -> reading head   within the limit of connections
    opened       -> lingering      over the limit: 503
    opened       -> closed         over the limit by more than a tenth: reset
    reading head -> reading body   head complete; a request with a large body or Expect starts now
    reading head -> lingering      malformed or too large: 400, 414, 431; header timeout: 408
    reading body -> responding     body complete; any other request starts now
    reading body -> lingering      malformed: 400; body timeout: 408; too many buffered bytes: 503;
                                   or an early response was sent before the body was complete
    responding   -> reading head   pipelining: the next request arrives before the response is sent
    responding   -> keep-alive     response sent, no other request has begun
    responding   -> closed         response sent with `Connection: close`
    keep-alive   -> reading head   first byte of the next request
    keep-alive   -> closed         keep-alive timeout, or the broker drains
    lingering    -> closed         the client closes; lingering timeout; or the broker drains
    any          -> closed         the client closes; or it is a slow reader: send timeout

With pipelining a connection reads one request while it responds to another. Then the timeout of the
request that it reads applies. Responses are sent in the order of the requests. If a request is
rejected, its error response is sent after the responses to earlier requests.

A client that closes its sending side has disconnected (docs/reliability/faults.md#a19). The broker
may still do what it requested, but sends no response, and its parked poll is released.
"""

import asyncio
from typing import Any, ClassVar, NoReturn, cast

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.errors import BadRequest, HeadersTooLarge, Overloaded, Problem, RequestTimeout
from app.server.client import Client
from app.server.exchange import Exchange, start_exchange
from app.server.limits import (
    MAX_PIPELINED,
    MAX_TINY_CHUNKS,
    SMALL_BODY,
    UNCOUNTED_BYTES,
    ConnectionLimits,
    EarlyResponse,
    TimeoutQueue,
    head_without,
)

_CHECKED_HEADERS = frozenset([b"host", b"content-length", b"transfer-encoding", b"expect"])
_INVALID_IN_HOST = frozenset(b" \t,/@?#\\")


class StopParsing(Exception):
    """Raised by a parser callback that rejects the request. The reason is in `_parse_error`."""


class HardenedConnection(HttpToolsProtocol):
    """One connection.

    `_parser_state` is the timeout of the part that is being parsed: `limits.header_timeouts` in a
    head, `limits.body_timeouts` in a body, None between two requests.
    """

    limits: ClassVar[ConnectionLimits]
    cycle: Exchange  # uvicorn's name; the request that was parsed last

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._parser_state: TimeoutQueue | None = None
        self._parser_state_changed = False
        self._timeout: TimeoutQueue | None = None  # the queue of this connection; None while responding
        self._active: Exchange | None = None  # the request whose handler is running
        self._discard_input = False
        self._parse_error: Problem | None = None  # set by a callback, which can only stop the parser
        self._pending_error: Problem | None = None  # sent after the responses to the requests before it
        # Of a request that started at its head: `keep_alive` of its exchange once the body is
        # complete.
        self._early_keep_alive: bool | None = None
        self._bytes_read = 0  # in this parser state, at least
        self._host_count = self._body_length = 0  # from the head; a chunked body counts as large
        self._body_bytes = self._body_chunks = self._body_bytes_at_timeout = 0
        self._buffered_bytes = self._unsent_bytes = 0

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        count, limit = len(self.connections), self.limits.max_connections
        if count > limit + limit // 10 + 1:
            transport.abort()
        elif count - self.limits.lingering_timeouts.length() > limit:
            self._reject(Overloaded(f"the limit of {limit} connections is reached"))
        else:
            self._set_timeout(self.limits.header_timeouts)

    def connection_lost(self, exc: Exception | None) -> None:
        """Notifies the active request. uvicorn notifies only the request that was parsed last."""
        self._set_timeout(None)
        self.limits.send_timeouts.leave(self)
        self._uncount_buffered(self._buffered_bytes)
        if self._active is not None:
            self._active.disconnect()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._discard_input:
            return
        self._bytes_read += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            self._reject(self._parse_error or BadRequest(f"the request cannot be parsed: {error}"))
            return
        if self._parser_state_changed:
            self._parser_state_changed = False
            self._set_timeout(self._parser_state or (None if self._active else self.limits.keep_alive_timeouts))
        if self._bytes_read > self.limits.max_header_bytes:
            self._check_bytes_read()

    def _ignore_upgrade(self, remaining: bytes) -> None:
        """Parses the head again without its Upgrade header.

        The parser takes the bytes after such a head for the other protocol, and the body would be
        lost. Java's HttpClient offers h2c with every first request.
        """
        head = head_without(
            b"upgrade", self.parser.get_method(), self.url, self.parser.get_http_version(), self.headers
        )
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._bytes_read = 0
        self.data_received(head + remaining)

    def _check_bytes_read(self) -> None:
        """Rejects a head that does not end, and chunk extensions or trailers that do not end."""
        if self._parser_state is self.limits.header_timeouts:
            self._reject(self.limits.too_large(self.url))
        elif (
            self._parser_state is self.limits.body_timeouts
            and self._bytes_read > 2 * self._body_bytes + self.limits.max_header_bytes
        ):
            self._reject(BadRequest("chunk overhead exceeds the body size"))

    # Parser callbacks

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            self._stop_parsing(BadRequest(f"more than {MAX_PIPELINED} pipelined requests wait for a response"))
        super().on_message_begin()
        self._parser_state, self._parser_state_changed = self.limits.header_timeouts, True
        self._host_count = self._body_length = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in _CHECKED_HEADERS:
            self._check_header(name, value)
        self.headers.append((name, value))
        if len(self.headers) > self.limits.max_headers:
            self._stop_parsing(HeadersTooLarge(f"more than {self.limits.max_headers} headers"))

    def _check_header(self, name: bytes, value: bytes) -> None:
        if name == b"host":
            self._host_count += 1
            if not _INVALID_IN_HOST.isdisjoint(value):
                self._stop_parsing(BadRequest("invalid Host header"))
        elif name == b"content-length":
            self._body_length = int(value)
        elif name == b"transfer-encoding":
            self._body_length = SMALL_BODY + 1
            if value.lower() != b"chunked":
                self._stop_parsing(BadRequest("the only supported Transfer-Encoding is chunked"))
        elif value.lower() == b"100-continue":
            self.expect_100_continue = True

    def on_headers_complete(self) -> None:
        version = self.parser.get_http_version()
        self._check_head(version)
        if self.parser.should_upgrade():
            return  # `_ignore_upgrade` parses the head again
        self.cycle = start_exchange(self, version, self.limits.fast_router.match)
        self.headers = []  # trailers must not be added to the headers of the request
        self._parser_state = self.limits.body_timeouts
        self._bytes_read = self._body_bytes = self._body_chunks = self._body_bytes_at_timeout = 0
        if self._body_length > SMALL_BODY or self.expect_100_continue:
            self._early_keep_alive = self.cycle.keep_alive
            self.cycle.keep_alive = False
            self.cycle.transport = EarlyResponse(self.transport, self.lingering_close)
            self._start_request()
        self._parser_state_changed = True

    def _start_request(self) -> None:
        """Starts the request, or appends it to the pipeline if another one is active.

        A request with a small body starts when the body is complete. One with a large body, or with
        `Expect: 100-continue`, starts when its head is complete. The connection notices disconnects
        only while it reads. Therefore it reads pipelined requests, as long as they are small.
        """
        if self._active is None:
            self._start_asgi_task(self.cycle, self.app)
            return
        self.pipeline.appendleft((self.cycle, self.app))
        if sum(len(cycle.body) for cycle, _ in self.pipeline) > SMALL_BODY:
            self.flow.pause_reading()

    def _check_head(self, version: str) -> None:
        """Skips the full check for an ordinary head."""
        is_ordinary = (
            self._host_count == 1
            and version == "1.1"
            and self.url[:1] == b"/"
            and b"#" not in self.url
            and not self.parser.should_upgrade()
        )
        if (
            is_ordinary
            and self._bytes_read <= self.limits.max_header_bytes
            and len(self.url) <= self.limits.max_url_bytes
        ):
            return
        problem = self.limits.check_head(self.parser.get_method(), version, self.url, self.headers)
        if problem is not None:
            self._stop_parsing(problem)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._body_chunks += 1
        if self._body_chunks > MAX_TINY_CHUNKS and self._body_bytes < 16 * self._body_chunks:
            self._stop_parsing(BadRequest("too many chunks of less than 16 bytes"))
        if (
            self._body_bytes > (UNCOUNTED_BYTES if self._early_keep_alive is None else SMALL_BODY)
            and not self.cycle.response_complete
        ):
            self._count_buffered(len(body) if self._buffered_bytes else self._body_bytes)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._parser_state is not self.limits.body_timeouts:
            return  # `_ignore_upgrade` is about to parse this head again
        self._parser_state, self._parser_state_changed, self._bytes_read = None, True, 0
        super().on_message_complete()
        if self._early_keep_alive is None:
            if self._body_bytes > UNCOUNTED_BYTES:
                self._uncount_buffered(min(self._buffered_bytes, self._body_bytes))
            self._start_request()
        else:
            self.cycle.transport = self.transport
            self.cycle.keep_alive = self._early_keep_alive and not self.cycle.response_started
            self._early_keep_alive = None

    def _count_buffered(self, size: int) -> None:
        self._buffered_bytes += size
        self.limits.buffered_bytes += size
        if self.limits.buffered_bytes > self.limits.max_buffered_bytes:
            self._stop_parsing(
                Overloaded(f"more than {self.limits.max_buffered_bytes} bytes of request bodies are in memory")
            )

    def _uncount_buffered(self, size: int) -> None:
        self.limits.buffered_bytes -= size
        self._buffered_bytes -= size

    # Responses

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._active = cast(Exchange, cycle)
        cycle.scope["state"]["client"] = Client(lambda: self.flow.read_paused)
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Replaces uvicorn's, which sets a timer for each keep-alive connection."""
        self.server_state.total_requests += 1
        self._active = None
        self._uncount_buffered(self._buffered_bytes)
        if self.transport.is_closing() or self._timeout is self.limits.lingering_timeouts:
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._pending_error is not None:
            self._send_error(self._pending_error)
        elif self._parser_state is None:
            self._set_timeout(self.limits.keep_alive_timeouts)

    def shutdown(self) -> None:
        """Closes the connection, or makes it close after the current response."""
        if self._early_keep_alive is not None:
            self._early_keep_alive = False
        if self._timeout is self.limits.lingering_timeouts:
            self.transport.close()
        else:
            super().shutdown()

    # Rejected requests

    def _stop_parsing(self, problem: Problem) -> NoReturn:
        """Rejects the request from a parser callback.

        The parser raises an error of its own, so the problem is kept in `_parse_error`. It is not
        raised itself, because its traceback would keep the received bytes until the connection is
        closed: half a MiB for each of a hundred rejected uploads.
        """
        self._parse_error = problem
        raise StopParsing

    def _reject(self, problem: Problem) -> None:
        """Sends exactly one response per request, in order: never inside another, never twice."""
        self._discard_input = True
        self._set_timeout(None)
        rejected = self.cycle if self._parser_state is self.limits.body_timeouts else None
        if rejected is not None and rejected.response_complete:
            self.lingering_close()
        elif rejected is not None and rejected.response_started:
            rejected.keep_alive = False
        elif self._active not in (None, rejected):
            if self._early_keep_alive is not None:  # the rejected request is in the pipeline already
                self.pipeline.popleft()
            self._pending_error = problem
        else:
            if rejected is not None:
                rejected.disconnect()
            self._send_error(problem)

    def _send_error(self, problem: Problem) -> None:
        self.transport.write(self.limits.error_response(problem, self.server_state.default_headers))
        self.lingering_close()

    def lingering_close(self) -> None:
        """Closes the sending side, then reads and discards input until the client closes.

        Closing a socket with unread input sends RST, and a client that is still sending would lose
        our response.
        """
        self._discard_input = True
        self._uncount_buffered(self._buffered_bytes)
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._set_timeout(self.limits.lingering_timeouts)

    # Timeouts

    def _set_timeout(self, queue: TimeoutQueue | None) -> None:
        """Moves the connection to another timeout queue, or to none."""
        if self._timeout is not None:
            self._timeout.leave(self)
        self._timeout = queue
        if queue is not None:
            queue.join(self, self.loop.time())

    def on_header_timeout(self) -> None:
        self._reject(RequestTimeout(f"request line and headers not received within {self.limits.header_seconds} s"))

    def on_body_timeout(self) -> None:
        """Rejects the request, unless its body makes progress or the broker itself delays it."""
        is_delayed_by_broker = self.flow.read_paused or self.cycle.waiting_for_100_continue
        progress = self._body_bytes - self._body_bytes_at_timeout
        if is_delayed_by_broker or progress >= self.limits.min_progress_bytes:
            self._body_bytes_at_timeout = self._body_bytes
            self._set_timeout(self.limits.body_timeouts)
        else:
            self._reject(RequestTimeout(f"body not received within {self.limits.body_seconds} s"))

    def pause_writing(self) -> None:
        """Starts the send timeout: the client reads slower than the broker writes."""
        super().pause_writing()
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self.limits.send_timeouts.join(self, self.loop.time())

    def resume_writing(self) -> None:
        super().resume_writing()
        self.limits.send_timeouts.leave(self)

    def on_send_timeout(self) -> None:
        """Resets the connection of a slow reader, unless it makes progress.

        A response that the client does not read would stay in memory forever, even after a close.
        """
        if self._unsent_bytes - self.transport.get_write_buffer_size() >= self.limits.min_progress_bytes:
            self.pause_writing()  # the timeout starts again
        else:
            self.transport.abort()
