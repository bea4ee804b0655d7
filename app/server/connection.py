"""uvicorn's HTTP protocol with what it leaves to a proxy in front: deadlines, caps, and one reading of every request (R16).

The parser refuses most of what could be read in two ways; here and in `edge` is the rest. A client that closes its sending side has
left (A19): what it asked for may still be done, but nobody answers it, and its parked poll is released."""

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

_TELLING = frozenset([b"host", b"content-length", b"transfer-encoding", b"expect"])
_NOT_IN_HOSTS = frozenset(b" \t,/@?#\\")


class StopParsing(Exception):
    """Raised by a parser callback that refuses the request. The reason is in the connection's `_trouble`."""


class HardenedConnection(HttpToolsProtocol):
    """One connection. `_stage` is what the parser is in the middle of: a head, a body, or (None) neither."""

    edge: ClassVar[ConnectionLimits]
    cycle: Exchange  # the last that was read

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._stage: TimeoutQueue | None = None
        self._moved = False  # to another stage
        self._line: TimeoutQueue | None = None  # where we stand; None while it is we who let the client wait
        self._active: Exchange | None = None  # being answered
        self._deaf = False  # whatever still comes is thrown away
        self._trouble: Problem | None = None  # found by a callback, which can only stop the parser
        self._refusal: Problem | None = None  # to be told when all before it are answered
        self._keep_alive: bool | None = (
            None  # of one that began at its head: what the cycle's will be when its body is complete
        )
        self._raw = 0  # bytes that came in this stage, at least
        self._hosts = self._length = 0  # told by the head; the length of a chunked body is "large"
        self._received = self._pieces = self._marked = 0  # of the body; how much there was of it at the last deadline
        self._held = self._unsent = 0

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        count, most = len(self.connections), self.edge.most
        if count > most + most // 10 + 1:
            transport.abort()
        elif count - self.edge.leaving.length() > most:
            self._refuse(Overloaded(f"there are {most} connections, as many as may be"))
        else:
            self._wait_in(self.edge.heads)

    def connection_lost(self, exc: Exception | None) -> None:
        """uvicorn tells the request that was read last; one that is being answered before it has to know too."""
        self._wait_in(None)
        self.edge.unread.leave(self)
        self._let_go(self._held)
        if self._active is not None:
            self._active.leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._raw += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline(data[offer.args[0] :])
            return
        except httptools.HttpParserError as error:
            self._refuse(self._trouble or BadRequest(f"not a request that we can read: {error}"))
            return
        if self._moved:
            self._moved = False
            self._wait_in(self._stage or (None if self._active else self.edge.idle))
        if self._raw > self.edge.max_header_bytes:
            self._check_raw()

    def _decline(self, rest: bytes) -> None:
        """The parser takes what follows an offer of another protocol for that protocol, and the body would be lost (Java's HttpClient
        offers h2c with every first request): so the head is read again without the offer."""
        head = head_without(
            b"upgrade", self.parser.get_method(), self.url, self.parser.get_http_version(), self.headers
        )
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._raw = 0
        self.data_received(head + rest)

    def _check_raw(self) -> None:
        """A head that does not end; chunk extensions and trailers that do not."""
        if self._stage is self.edge.heads:
            self._refuse(self.edge.too_large(self.url))
        elif self._stage is self.edge.bodies and self._raw > 2 * self._received + self.edge.max_header_bytes:
            self._refuse(BadRequest("the body is mostly wrapping"))

    # What the parser finds

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            self._stop(BadRequest(f"more than {MAX_PIPELINED} requests were sent before the first was answered"))
        super().on_message_begin()
        self._stage, self._moved = self.edge.heads, True
        self._hosts = self._length = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in _TELLING:
            self._note(name, value)
        self.headers.append((name, value))
        if len(self.headers) > self.edge.max_headers:
            self._stop(HeadersTooLarge(f"more than {self.edge.max_headers} headers"))

    def _note(self, name: bytes, value: bytes) -> None:
        if name == b"host":
            self._hosts += 1
            if not _NOT_IN_HOSTS.isdisjoint(value):
                self._stop(BadRequest("the Host header is not a host"))
        elif name == b"content-length":
            self._length = int(value)
        elif name == b"transfer-encoding":
            self._length = SMALL_BODY + 1
            if value.lower() != b"chunked":
                self._stop(BadRequest("the only Transfer-Encoding taken is chunked"))
        elif value.lower() == b"100-continue":
            self.expect_100_continue = True

    def on_headers_complete(self) -> None:
        version = self.parser.get_http_version()
        self._check_head(version)
        if self.parser.should_upgrade():
            return  # `_decline` has it read again
        self.cycle = start_exchange(self, version, self.edge.hot.takes)
        self.headers = []  # for trailers, which must not pass for headers
        self._stage = self.edge.bodies
        self._raw = self._received = self._pieces = self._marked = 0
        if self._length > SMALL_BODY or self.expect_100_continue:
            self._keep_alive = self.cycle.keep_alive
            self.cycle.keep_alive = False
            self.cycle.transport = EarlyResponse(self.transport, self.lingering_close)
            self._begin()
        self._moved = True

    def _begin(self) -> None:
        """What is small begins when all of it is there; what is large, or waits for our word, when its head is. While we read we hear
        that the client leaves, so others may come ahead as long as they are small."""
        if self._active is None:
            self._start_asgi_task(self.cycle, self.app)
            return
        self.pipeline.appendleft((self.cycle, self.app))
        if sum(len(cycle.body) for cycle, _ in self.pipeline) > SMALL_BODY:
            self.flow.pause_reading()

    def _check_head(self, version: str) -> None:
        plain = (
            self._hosts == 1
            and version == "1.1"
            and self.url[:1] == b"/"
            and b"#" not in self.url
            and not self.parser.should_upgrade()
        )
        if plain and self._raw <= self.edge.max_header_bytes and len(self.url) <= self.edge.max_url_bytes:
            return
        fault = self.edge.check_head(self.parser.get_method(), version, self.url, self.headers)
        if fault is not None:
            self._stop(fault)

    def on_body(self, body: bytes) -> None:
        self._received += len(body)
        self._pieces += 1
        if self._pieces > MAX_TINY_CHUNKS and self._received < 16 * self._pieces:
            self._stop(BadRequest("the chunks are too small"))
        if (
            self._received > (UNCOUNTED_BYTES if self._keep_alive is None else SMALL_BODY)
            and not self.cycle.response_complete
        ):
            self._hold(len(body) if self._held else self._received)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._stage is not self.edge.bodies:
            return  # an offer that is about to be read again
        self._stage, self._moved, self._raw = None, True, 0
        super().on_message_complete()
        if self._keep_alive is None:
            if self._received > UNCOUNTED_BYTES:
                self._let_go(min(self._held, self._received))
            self._begin()
        else:
            self.cycle.transport = self.transport
            self.cycle.keep_alive = self._keep_alive and not self.cycle.response_started
            self._keep_alive = None

    def _hold(self, size: int) -> None:
        self._held += size
        self.edge.held += size
        if self.edge.held > self.edge.max_held:
            self._stop(Overloaded(f"the bodies that are coming in have {self.edge.max_held} bytes already"))

    def _let_go(self, size: int) -> None:
        self.edge.held -= size
        self._held -= size

    # Answers

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._active = cast(Exchange, cycle)
        cycle.scope["state"]["client"] = Client(lambda: self.flow.read_paused)
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """uvicorn's, with the idle line instead of a timer."""
        self.server_state.total_requests += 1
        self._active = None
        self._let_go(self._held)
        if self.transport.is_closing() or self._line is self.edge.leaving:
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._refusal is not None:
            self._tell(self._refusal)
        elif self._stage is None:
            self._wait_in(self.edge.idle)

    def shutdown(self) -> None:
        if self._keep_alive is not None:
            self._keep_alive = False
        if self._line is self.edge.leaving:
            self.transport.close()
        else:
            super().shutdown()

    # Refusals

    def _stop(self, problem: Problem) -> NoReturn:
        """From a callback. The parser ends with an error of its own, so the problem is kept here. The problem itself is not raised: its
        traceback would keep the received bytes until the connection is closed (half a MiB for each of a hundred refused uploads)."""
        self._trouble = problem
        raise StopParsing

    def _refuse(self, problem: Problem) -> None:
        """Exactly one answer per request, in order: never into another's, never after its own."""
        self._deaf = True
        self._wait_in(None)
        own = self.cycle if self._stage is self.edge.bodies else None
        if own is not None and own.response_complete:
            self.lingering_close()
        elif own is not None and own.response_started:
            own.keep_alive = False
        elif self._active not in (None, own):
            if self._keep_alive is not None:  # it has begun to wait behind the others
                self.pipeline.popleft()
            self._refusal = problem
        else:
            if own is not None:
                own.leave()
            self._tell(problem)

    def _tell(self, problem: Problem) -> None:
        self.transport.write(self.edge.refusal(problem, self.server_state.default_headers))
        self.lingering_close()

    def lingering_close(self) -> None:
        """A close with bytes unread is a reset, which takes our answer away from a client that is still sending: we hear it out."""
        self._deaf = True
        self._let_go(self._held)
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._wait_in(self.edge.leaving)

    # Deadlines

    def _wait_in(self, line: TimeoutQueue | None) -> None:
        if self._line is not None:
            self._line.leave(self)
        self._line = line
        if line is not None:
            line.join(self, self.loop.time())

    def on_header_timeout(self) -> None:
        self._refuse(RequestTimeout(f"no request line and headers in {self.edge.header_seconds} s"))

    def on_body_timeout(self) -> None:
        """Unless it moves, or it is we who do not read."""
        waits_for_us = self.flow.read_paused or self.cycle.waiting_for_100_continue
        if waits_for_us or self._received - self._marked >= self.edge.pace:
            self._marked = self._received
            self._wait_in(self.edge.bodies)
        else:
            self._refuse(RequestTimeout(f"no body in {self.edge.body_seconds} s"))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unsent = self.transport.get_write_buffer_size()
        self.edge.unread.join(self, self.loop.time())

    def resume_writing(self) -> None:
        super().resume_writing()
        self.edge.unread.leave(self)

    def on_send_timeout(self) -> None:
        """An answer that nobody takes would be kept for ever, even when the connection is closed."""
        if self._unsent - self.transport.get_write_buffer_size() >= self.edge.pace:
            self.pause_writing()  # as if it began to be slow now
        else:
            self.transport.abort()
