"""Limits and timeouts that all connections of a process share, and rendering of error responses.

There is no timer per request. Connections with the same timeout are in one `TimeoutQueue`, and one
timer checks the first connections of all queues every 0.1 s.

Responses that clients have not read are limited in time by `SendBuffer`, for each connection, and
in memory by `UnreadBytes`, for all connections together. The states of a `SendBuffer`:

    writable -> stalled    a write leaves more than COUNTED_RESPONSES_ABOVE bytes in the buffer of
                           the transport
    stalled  -> writable   the client has read nearly all bytes in the buffer
    stalled  -> reset      the client has read too little within the send timeout; or all
                           connections together hold too many bytes, and this one stalled first
"""

import asyncio
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar
from uuid import uuid4

from prometheus_client import Counter

from app.errors import Overloaded, Problem
from app.http.problems import render
from app.log import log
from app.metrics import Metrics
from app.settings import KIB, Settings

if TYPE_CHECKING:
    from app.server.connection import HardenedConnection

T = TypeVar("T")
Header = tuple[bytes, bytes]

# A body of at most this size is received before its request starts.
SMALL_BODY = 64 * KIB
# Maximum number of pipelined requests that wait for a response. A client can send 8,000 requests in
# 256 kB, and each request needs 5 kB of memory.
MAX_PIPELINED = 100
# Maximum number of chunks of a body if their average is less than 16 bytes. 256 kB of such chunks
# would block the event loop for 40 ms.
MAX_TINY_CHUNKS = 4096
# An incomplete small body of more than 4 KiB counts as buffered, because its caller is not
# authenticated yet. Smaller bodies do not count: in 20,000 connections they have at most 80 MB.
COUNTED_BODY_ABOVE = 4 * KIB
# Responses count as unread if there are more than 4 KiB in the buffer of their connection. Smaller
# buffers do not count: in 20,000 connections they have at most 80 MB.
COUNTED_RESPONSES_ABOVE = 4 * KIB
TICK_SECONDS = 0.1


_STATUS_LINES = {status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}
_join_header = b": ".join


def render_head(status: int, headers: Sequence[Header]) -> bytes:
    """Encodes the status line and the headers of a response.

    Raises RuntimeError for a line break in a header, because it would begin another header.
    """
    head = _STATUS_LINES[status] + b"\r\n".join(map(_join_header, headers)) + b"\r\n\r\n"
    if head.count(b"\n") != len(headers) + 2:
        raise RuntimeError("line break in a response header")
    return head


class TimeoutQueue(Generic[T]):
    """Connections with a timeout of the same length, in the order in which they time out.

    The first connection to join is the first to time out, because the length is the same. So a
    check stops at the first connection that has time left.
    """

    def __init__(self, seconds: float, on_timeout: Callable[[T], None]) -> None:
        self._seconds = seconds
        self._on_timeout = on_timeout
        self._due: dict[T, float] = {}

    def join(self, connection: T, now: float) -> None:
        """Appends the connection. Its timeout begins at `now`.

        A connection that is already in the queue must leave first, because assigning to an existing
        key of a dict keeps the key's old position.
        """
        self._due[connection] = now + self._seconds

    def leave(self, connection: T) -> None:
        self._due.pop(connection, None)

    def length(self) -> int:
        return len(self._due)

    def run_once(self, now: float) -> None:
        """Removes the connections that have timed out, and runs the callback for each."""
        late = []
        for connection, due in self._due.items():
            if due > now:
                break
            late.append(connection)
        for connection in late:
            del self._due[connection]
            self._on_timeout(connection)


Timeouts: TypeAlias = TimeoutQueue["HardenedConnection"]


class UnreadBytes:
    """Counts the bytes that stalled connections hold. If there are too many bytes, resets the
    connections that stalled first.

    The connections are in the order in which they stalled. If a client reads, its connection moves
    to the end of that order. So the connection is not reset, however large the response is.
    """

    def __init__(self, max_bytes: int, resets: Counter) -> None:
        self._max_bytes = max_bytes
        self._resets = resets
        self._by_connection: dict[SendBuffer, int] = {}
        self.total = 0

    def set_bytes(self, buffer: "SendBuffer", size: int) -> None:
        """Sets the number of bytes that a stalled connection holds."""
        self.total += size - self._by_connection.get(buffer, 0)
        self._by_connection[buffer] = size
        while self.total > self._max_bytes:
            self.reset(next(iter(self._by_connection)))

    def remove(self, buffer: "SendBuffer") -> None:
        self.total -= self._by_connection.pop(buffer, 0)

    def reset(self, buffer: "SendBuffer") -> None:
        """Resets the connection. After a close the unread responses would stay in memory."""
        self.remove(buffer)
        self._resets.inc()
        buffer.transport.abort()


class SendBuffer:
    """The responses that one client has not read yet, and their send timeout."""

    __slots__ = ("_held_bytes", "_limits", "_loop", "_unsent_at_timeout_start", "_writable", "transport")

    def __init__(
        self, transport: asyncio.Transport, limits: "ConnectionLimits", loop: asyncio.AbstractEventLoop
    ) -> None:
        self.transport = transport
        self._writable: asyncio.Future[None] | None = None  # pending while stalled
        self._limits = limits
        self._loop = loop
        self._unsent_at_timeout_start = 0  # bytes
        self._held_bytes = 0  # bytes of its response that a waiting handler keeps in memory
        transport.set_write_buffer_limits(high=COUNTED_RESPONSES_ABOVE)

    @property
    def is_stalled(self) -> bool:
        return self._writable is not None

    def stall(self) -> None:
        """Starts the send timeout. The transport calls this when its buffer is full."""
        self._writable = self._writable or self._loop.create_future()
        self._unsent_at_timeout_start = self.transport.get_write_buffer_size()
        self._limits.send_timeouts.join(self, self._loop.time())
        self._update_unread()

    def resume(self) -> None:
        self._limits.send_timeouts.leave(self)
        self._limits.unread.remove(self)
        self._held_bytes = 0
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    async def wait(self, held_bytes: int) -> None:
        """Waits while stalled. `held_bytes` is how many bytes of the response stay in memory during
        the wait."""
        self._held_bytes = held_bytes
        self._update_unread()
        if self._writable is not None:
            await self._writable

    def on_timeout(self) -> None:
        """Resets the connection, unless the client has read enough since the timeout began."""
        unsent = self.transport.get_write_buffer_size()
        if self._unsent_at_timeout_start - unsent >= self._limits.min_progress_bytes:
            self._limits.unread.remove(self)  # `stall` then adds it at the end of the order
            self.stall()  # the timeout starts again
        else:
            self._limits.unread.reset(self)

    def _update_unread(self) -> None:
        self._limits.unread.set_bytes(self, self.transport.get_write_buffer_size() + self._held_bytes)


class ConnectionLimits:
    """The limits and timeout queues of one process.

    `count_buffered` counts the bytes of request bodies in memory. `unread` counts the bytes of
    responses that clients have not read yet.
    """

    def __init__(self, settings: Settings, metrics: Metrics, max_connections: int) -> None:
        """The process serves at most `max_connections` connections. A tenth more may be in a
        lingering close. Any further connection is reset."""
        self._metrics = metrics
        self.max_connections = max_connections
        self.header_seconds, self.body_seconds = settings.header_seconds, settings.body_seconds
        self.max_headers, self.max_header_bytes = settings.max_headers, settings.max_header_bytes
        self.max_url_bytes = settings.max_url_bytes
        self.min_progress_bytes = settings.body_bytes_per_second * settings.body_seconds
        self._max_buffered_bytes = max(settings.max_held_bytes, settings.max_batch_bytes)
        self._buffered_bytes = 0  # of request bodies
        self.header_timeouts: Timeouts = TimeoutQueue(settings.header_seconds, lambda late: late.on_header_timeout())
        self.body_timeouts: Timeouts = TimeoutQueue(settings.body_seconds, lambda late: late.on_body_timeout())
        self.keep_alive_timeouts: Timeouts = TimeoutQueue(
            settings.keep_alive_seconds, lambda late: late.transport.close()
        )
        self.lingering_timeouts: Timeouts = TimeoutQueue(settings.header_seconds, lambda late: late.transport.abort())
        self.send_timeouts: TimeoutQueue[SendBuffer] = TimeoutQueue(settings.body_seconds, SendBuffer.on_timeout)
        largest_response = max(settings.max_list_bytes, settings.max_batch_bytes)
        self.unread = UnreadBytes(max(settings.max_unread_bytes, largest_response), metrics.connections_reset)
        metrics.unread_bytes.set_function(lambda: self.unread.total)
        self._timer: asyncio.TimerHandle | None = None

    def start(self, count_connections: Callable[[], int]) -> None:
        """Starts the timer that checks the queues. The timer also measures the lag of the event
        loop: the delay with which the timer itself fires."""
        loop = asyncio.get_running_loop()

        def tick(due: float) -> None:
            now = loop.time()
            self._timer = loop.call_at(now + TICK_SECONDS, tick, now + TICK_SECONDS)
            self._metrics.loop_lag.observe(max(0.0, now - due))
            self._metrics.connections.set(count_connections())
            self.run_once(now)

        tick(loop.time())

    def run_once(self, now: float) -> None:
        for queue in (self.header_timeouts, self.body_timeouts, self.keep_alive_timeouts, self.lingering_timeouts):
            queue.run_once(now)
        self.send_timeouts.run_once(now)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def count_buffered(self, size: int) -> Problem | None:
        """Adds bytes of a request body to the buffered bytes. Returns an error if the bodies of all
        connections then have too many bytes."""
        self._buffered_bytes += size
        if self._buffered_bytes <= self._max_buffered_bytes:
            return None
        return Overloaded(f"more than {self._max_buffered_bytes} bytes of request bodies are in memory")

    def uncount_buffered(self, size: int) -> None:
        self._buffered_bytes -= size

    def error_response(self, problem: Problem) -> tuple[int, list[Header], bytes]:
        """Renders the response to a request that the connection rejects, and counts the rejection.

        Returns status, headers and body. The headers announce that the connection will be closed.
        """
        request_id = uuid4().hex
        self._metrics.refused.labels(problem.code).inc()
        log.debug("request rejected", request_id=request_id, code=problem.code, detail=problem.detail)
        headers = {"Connection": "close", "X-Request-Id": request_id, "X-Content-Type-Options": "nosniff"}
        response = render(problem, request_id, headers)
        return problem.status, response.raw_headers, bytes(response.body)
