"""The middleware around every request: request id, log line, timing.

It is plain ASGI, because a handler wrapped by BaseHTTPMiddleware is not notified that its client
has disconnected.
"""

import asyncio
import logging
import random
import re
import time

from prometheus_client import Histogram
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import DatabaseUnavailable, Problem
from app.http.headers import get_header, request_id
from app.http.problems import render
from app.log import log
from app.metrics import Metrics

_NO_SNIFFING = (b"x-content-type-options", b"nosniff")  # a browser must not guess that user data is HTML
_SAFE_ID = re.compile(r"[A-Za-z0-9._:-]{1,120}")


class RequestMiddleware:
    """Gives each request an id (the client's, if it is a safe one), and records how it ended."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self._metrics = metrics
        self._verbose = log.is_enabled_for(logging.DEBUG)
        # By route and status class. Finding a histogram by its labels takes longer than observing a
        # value.
        self._timers: dict[tuple[str, int], Histogram] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        id = self.begin(scope)
        routed_scope = _route_head_as_get(scope)
        started = time.perf_counter()
        status = 0  # until the response has started

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] += self.headers(id)
            await send(message)

        try:
            await self.app(routed_scope, receive, send_with_id)
        except (Exception, asyncio.CancelledError) as error:
            response = self.error_response(error, id)
            if status == 0:
                await response(scope, receive, send_with_id)
        finally:
            route = getattr(routed_scope.get("route"), "name", "unknown")
            self.finish(scope, route, status, time.perf_counter() - started)

    def begin(self, scope: Scope) -> str:
        """Returns the request id, and stores it in the scope."""
        id = scope.setdefault("state", {})["request_id"] = _choose_id(scope)
        return id

    def headers(self, id: str) -> tuple[tuple[bytes, bytes], ...]:
        return (b"x-request-id", id.encode()), _NO_SNIFFING

    def error_response(self, error: BaseException, id: str) -> Response:
        if isinstance(error, Problem):
            return render(error, id)
        if isinstance(error, asyncio.CancelledError):  # the server stops and no longer waits for requests
            return render(DatabaseUnavailable("the broker stopped before the request was done", "unknown"), id)
        log.error("request failed", request_id=id, exc_info=error)
        return render(Problem("the error was logged with this request id"), id)

    def finish(self, scope: Scope, route: str, status: int, seconds: float) -> None:
        """Observes the duration. Logs server errors, and at log level DEBUG every request."""
        timer = self._timers.get((route, status // 100))
        if timer is None:
            timer = self._timers[route, status // 100] = self._metrics.requests.labels(route, f"{status // 100}xx")
        timer.observe(seconds)
        if status >= 500 or self._verbose:
            facts = {"method": scope["method"], "path": scope["path"], "status": status, "ms": round(seconds * 1000, 1)}
            level = logging.WARNING if status >= 500 else logging.DEBUG
            log.log(level, "request answered", request_id=request_id(scope), **facts)


def _route_head_as_get(scope: Scope) -> Scope:
    """Routes HEAD to the handler of GET.

    The server omits the body, because its own scope still says HEAD.
    """
    return {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope


def _choose_id(scope: Scope) -> str:
    sent = get_header(scope, b"x-request-id")
    return sent if sent is not None and _SAFE_ID.fullmatch(sent) else f"{random.getrandbits(128):032x}"
