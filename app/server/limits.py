"""Limits and timeouts that all connections of a process share, and the bytes of error responses.

There is no timer per request. Connections with the same timeout are in one `TimeoutQueue`, and one
timer checks the heads of all queues every 0.1 s.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol
from uuid import uuid4

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from app.errors import BadRequest, HeadersTooLarge, Problem, UrlTooLong
from app.http.fast_routes import FastRouter
from app.http.problems import render
from app.log import log
from app.metrics import Metrics
from app.settings import KIB, Settings

Headers = list[tuple[bytes, bytes]]

# Bodies up to this size are buffered before the request starts; uvicorn reads as much ahead anyway.
SMALL_BODY = 64 * KIB
# Pipelined requests that may wait for a response. 256 kB can hold 8,000, and each of them costs 5
# kB.
MAX_PIPELINED = 100
# Chunks of less than 16 bytes each. 256 kB of such chunks would block the event loop for 40 ms.
MAX_TINY_CHUNKS = 4096
# Bytes of an incomplete body, whose caller is not authenticated yet, that do not count as buffered:
# 20,000 such bodies are 80 MB.
UNCOUNTED_BYTES = 4 * KIB
TICK_SECONDS = 0.1


class Connection(Protocol):
    """The callbacks of a timeout queue. Each closes the connection or joins a queue again."""

    transport: asyncio.Transport

    def on_header_timeout(self) -> None: ...
    def on_body_timeout(self) -> None: ...
    def on_send_timeout(self) -> None: ...


class TimeoutQueue:
    """Connections with the same timeout, in the order in which they are due.

    The timeout is the same for all, so the first to join is the first to be due. A check stops at
    the first connection that is not due yet.
    """

    def __init__(self, seconds: float, on_timeout: Callable[[Connection], None]) -> None:
        self._seconds = seconds
        self._on_timeout = on_timeout
        self._due: dict[Connection, float] = {}

    def join(self, connection: Connection, now: float) -> None:
        """Appends the connection.

        One that is in the queue must leave first: a dict keeps its old place.
        """
        self._due[connection] = now + self._seconds

    def leave(self, connection: Connection) -> None:
        self._due.pop(connection, None)

    def length(self) -> int:
        return len(self._due)

    def run_once(self, now: float) -> None:
        """Removes the connections that are due and runs their callbacks."""
        late = []
        for connection, due in self._due.items():
            if due > now:
                break
            late.append(connection)
        for connection in late:
            del self._due[connection]
            self._on_timeout(connection)


class EarlyResponse(asyncio.Transport):
    """The transport of a response that may be sent before its request is complete.

    Closing it calls `close`, which does a lingering close.
    """

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        super().__init__()
        self._transport = transport
        self._close = close

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._transport.write(data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._close()


class ConnectionLimits:
    """Limits, buffered bytes and timeout queues of one process."""

    def __init__(self, settings: Settings, metrics: Metrics, fast_router: FastRouter, max_connections: int) -> None:
        """`max_connections` connections are served. A tenth more may be in a lingering close.

        Any further connection is reset.
        """
        self.metrics = metrics
        self.fast_router = fast_router
        self.max_connections = max_connections
        self.header_seconds, self.body_seconds = settings.header_seconds, settings.body_seconds
        self.max_headers, self.max_header_bytes = settings.max_headers, settings.max_header_bytes
        self.max_url_bytes = settings.max_url_bytes
        self.min_progress_bytes = settings.body_bytes_per_second * settings.body_seconds
        self.max_buffered_bytes = max(settings.max_held_bytes, settings.max_batch_bytes)
        self.buffered_bytes = 0  # of request bodies
        self.header_timeouts = TimeoutQueue(settings.header_seconds, lambda connection: connection.on_header_timeout())
        self.body_timeouts = TimeoutQueue(settings.body_seconds, lambda connection: connection.on_body_timeout())
        self.keep_alive_timeouts = TimeoutQueue(
            settings.keep_alive_seconds, lambda connection: connection.transport.close()
        )
        self.lingering_timeouts = TimeoutQueue(settings.header_seconds, lambda connection: connection.transport.abort())
        self.send_timeouts = TimeoutQueue(settings.body_seconds, lambda connection: connection.on_send_timeout())
        self._timer: asyncio.TimerHandle | None = None

    def start(self, count_connections: Callable[[], int]) -> None:
        """Starts the timer.

        Its lateness is the lag of the event loop, which it observes as a metric.
        """
        loop = asyncio.get_running_loop()

        def tick(due: float) -> None:
            now = loop.time()
            self._timer = loop.call_at(now + TICK_SECONDS, tick, now + TICK_SECONDS)
            self.metrics.loop_lag.observe(max(0.0, now - due))
            self.metrics.connections.set(count_connections())
            self.run_once(now)

        tick(loop.time())

    def run_once(self, now: float) -> None:
        for queue in (
            self.header_timeouts,
            self.body_timeouts,
            self.keep_alive_timeouts,
            self.lingering_timeouts,
            self.send_timeouts,
        ):
            queue.run_once(now)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def error_response(self, problem: Problem, default_headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """A complete response, to be sent in one write. The connection is closed after it."""
        request_id = uuid4().hex
        self.metrics.refused.labels(problem.code).inc()
        log.debug("request rejected", request_id=request_id, code=problem.code, detail=problem.detail)
        response = render(
            problem,
            request_id,
            {"Connection": "close", "X-Request-Id": request_id, "X-Content-Type-Options": "nosniff"},
        )
        headers = [b"%s: %s\r\n" % header for header in (*default_headers, *response.raw_headers)]
        return b"".join([STATUS_LINE[problem.status], *headers, b"\r\n", bytes(response.body)])

    # Heads

    def too_large(self, url: bytes) -> Problem:
        """The error for a head that is too large: 414 if its URL alone is, otherwise 431."""
        if len(url) > self.max_url_bytes:
            return UrlTooLong(f"the URL has more than {self.max_url_bytes} bytes")
        return HeadersTooLarge(f"the request line and headers have more than {self.max_header_bytes} bytes")

    def check_head(self, method: bytes, version: str, url: bytes, headers: Headers) -> Problem | None:
        """Makes the checks that the parser does not make. Returns the error, if there is one.

        HTTP/1.0 needs no Host header, because old health checks send none. CONNECT is rejected
        here, because the parser treats it as an upgrade with any target and any headers: parsing
        the head again without its Upgrade header would not help.
        """
        hosts = [value for name, value in headers if name == b"host"]
        size = len(url) + sum(len(name) + len(value) + 4 for name, value in headers)
        if len(url) > self.max_url_bytes or size > self.max_header_bytes:
            return self.too_large(url)
        if version not in ("1.0", "1.1"):
            return BadRequest(f"HTTP/{version} is not supported")
        if version == "1.0" and any(name == b"transfer-encoding" for name, _ in headers):
            return BadRequest("Transfer-Encoding is not allowed in HTTP/1.0")
        if len(hosts) > 1 or (not hosts and version == "1.1"):
            return BadRequest(f"expected one Host header, got {len(hosts)}")
        if method == b"CONNECT":
            return BadRequest("CONNECT is not supported: this server is not a proxy")
        return None if _is_valid_target(url, b"".join(hosts)) else BadRequest("the request target must be a path")


def _is_valid_target(url: bytes, host: bytes) -> bool:
    """Whether the target is a path, or an absolute URL on the host of the Host header.

    `GET http://host/path` is meant for proxies. For the same host it has the same meaning here.
    """
    return b"#" not in url and url.startswith((b"/", b"http://%s/" % host))


def head_without(header: bytes, method: bytes, url: bytes, version: str, headers: Headers) -> bytes:
    """The bytes of a request's head without one of its headers."""
    lines = [b"%s: %s\r\n" % pair for pair in headers if pair[0] != header]
    return b"".join([method, b" ", url, b" HTTP/", version.encode(), b"\r\n", *lines, b"\r\n"])
