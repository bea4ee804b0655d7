"""What all connections of a process share at the HTTP edge: its limits, its deadlines, and how a refusal looks on the wire.

No timer per request: connections that wait for the same thing stand in one line, and one tick looks at the heads of the lines."""

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

SMALL_BODY = 64 * KIB  # a body up to here is nothing to speak of: uvicorn reads as much ahead by itself
MAX_PIPELINED = (
    100  # requests that may be sent before the first is answered; 256 kB can hold 8,000, each of which costs 5 kB
)
MAX_TINY_CHUNKS = 4096  # of less than 16 bytes each: 256 kB of such would keep everyone waiting for 40 ms
UNCOUNTED_BYTES = (
    4 * KIB
)  # of a body whose caller is not known yet, as it is not there to its end: 20,000 of these are 80 MB
TICK_SECONDS = 0.1


class Connection(Protocol):
    """What a line may say to one that has stood in it for too long. Each either ends the connection or joins a line again."""

    transport: asyncio.Transport

    def on_header_timeout(self) -> None: ...
    def on_body_timeout(self) -> None: ...
    def on_send_timeout(self) -> None: ...


class TimeoutQueue:
    """Everyone in a line has the same time, so those who came first are due first, and nobody else has to be looked at."""

    def __init__(self, seconds: float, on_late: Callable[[Connection], None]) -> None:
        self._seconds = seconds
        self._on_late = on_late
        self._due: dict[Connection, float] = {}

    def join(self, connection: Connection, now: float) -> None:
        """Whoever is in it leaves first: a dict keeps the place of what it has."""
        self._due[connection] = now + self._seconds

    def leave(self, connection: Connection) -> None:
        self._due.pop(connection, None)

    def length(self) -> int:
        return len(self._due)

    def run_once(self, now: float) -> None:
        late = []
        for connection, due in self._due.items():
            if due > now:
                break
            late.append(connection)
        for connection in late:
            del self._due[connection]
            self._on_late(connection)


class EarlyResponse(asyncio.Transport):
    """For an answer that may come before all of its request has: closing is left to `close`."""

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
    def __init__(self, settings: Settings, metrics: Metrics, hot: FastRouter, most: int) -> None:
        self.metrics = metrics
        self.hot = hot
        self.most = most  # connections that are served; a tenth more may be on their way out, any further are cut
        self.header_seconds, self.body_seconds = settings.header_seconds, settings.body_seconds
        self.max_headers, self.max_header_bytes = settings.max_headers, settings.max_header_bytes
        self.max_url_bytes = settings.max_url_bytes
        self.pace = settings.body_bytes_per_second * settings.body_seconds
        self.max_held = max(settings.max_held_bytes, settings.max_batch_bytes)
        self.held = 0  # bytes of bodies in memory
        self.heads = TimeoutQueue(settings.header_seconds, lambda connection: connection.on_header_timeout())
        self.bodies = TimeoutQueue(settings.body_seconds, lambda connection: connection.on_body_timeout())
        self.idle = TimeoutQueue(settings.keep_alive_seconds, lambda connection: connection.transport.close())
        self.leaving = TimeoutQueue(settings.header_seconds, lambda connection: connection.transport.abort())
        self.unread = TimeoutQueue(settings.body_seconds, lambda connection: connection.on_send_timeout())
        self._timer: asyncio.TimerHandle | None = None

    def start(self, count: Callable[[], int]) -> None:
        """`count` says how many connections there are. How late the tick comes is how long the loop let everyone wait."""
        loop = asyncio.get_running_loop()

        def tick(due: float) -> None:
            now = loop.time()
            self._timer = loop.call_at(now + TICK_SECONDS, tick, now + TICK_SECONDS)
            self.metrics.loop_lag.observe(max(0.0, now - due))
            self.metrics.connections.set(count())
            self.run_once(now)

        tick(loop.time())

    def run_once(self, now: float) -> None:
        for line in (self.heads, self.bodies, self.idle, self.leaving, self.unread):
            line.run_once(now)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def refusal(self, problem: Problem, default_headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """The whole answer. Written at once, and the connection is not used again."""
        name = uuid4().hex
        self.metrics.refused.labels(problem.code).inc()
        log.debug("request refused", request_id=name, code=problem.code, detail=problem.detail)
        answer = render(
            problem, name, {"Connection": "close", "X-Request-Id": name, "X-Content-Type-Options": "nosniff"}
        )
        headers = [b"%s: %s\r\n" % pair for pair in (*default_headers, *answer.raw_headers)]
        return b"".join([STATUS_LINE[problem.status], *headers, b"\r\n", bytes(answer.body)])

    # Heads

    def too_large(self, url: bytes) -> Problem:
        if len(url) > self.max_url_bytes:
            return UrlTooLong(f"the URL has more than {self.max_url_bytes} bytes")
        return HeadersTooLarge(f"the request line and headers have more than {self.max_header_bytes} bytes")

    def check_head(self, method: bytes, version: str, url: bytes, headers: Headers) -> Problem | None:
        """Checks that the parser does not make. Old probes send HTTP/1.0 without a Host header. For the parser CONNECT is always an
        upgrade, with any target and any headers, so it cannot be declined by parsing the head again."""
        hosts = [value for name, value in headers if name == b"host"]
        size = len(url) + sum(len(name) + len(value) + 4 for name, value in headers)
        if len(url) > self.max_url_bytes or size > self.max_header_bytes:
            return self.too_large(url)
        if version not in ("1.0", "1.1"):
            return BadRequest(f"HTTP/{version} is not spoken here")
        if version == "1.0" and any(name == b"transfer-encoding" for name, _ in headers):
            return BadRequest("there is no Transfer-Encoding in HTTP/1.0")
        if len(hosts) > 1 or (not hosts and version == "1.1"):
            return BadRequest(f"{len(hosts)} Host headers instead of one")
        if method == b"CONNECT":
            return BadRequest("CONNECT asks for a tunnel, and this server is not a proxy")
        return None if _is_target(url, b"".join(hosts)) else BadRequest("the request's target is not a path")


def _is_target(url: bytes, host: bytes) -> bool:
    """`GET http://host/path` is for proxies; it means the same here only if it names the same host."""
    return b"#" not in url and url.startswith((b"/", b"http://%s/" % host))


def head_without(unwanted: bytes, method: bytes, url: bytes, version: str, headers: Headers) -> bytes:
    lines = [b"%s: %s\r\n" % pair for pair in headers if pair[0] != unwanted]
    return b"".join([method, b" ", url, b" HTTP/", version.encode(), b"\r\n", *lines, b"\r\n"])
