"""Around every request, as plain ASGI (a wrapped handler would never hear that its client left): id, log line, timing."""

import logging
import random
import re
import time

from prometheus_client import Histogram
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import Problem
from app.http.headers import request_id, sent_header
from app.http.problems import render
from app.log import log
from app.metrics import Metrics

_NO_SNIFFING = (b"x-content-type-options", b"nosniff")  # what users sent stays JSON, whatever a browser thinks of it
_SAFE_ID = re.compile(r"[A-Za-z0-9._:-]{1,120}")


class RequestMiddleware:
    """Gives the request an id (the client's own if it is a sane one), counts and logs its end."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self._metrics = metrics
        self._verbose = log.is_enabled_for(logging.DEBUG)
        self._timers: dict[
            tuple[str, int], Histogram
        ] = {}  # to look one up among the labels takes longer than to use it

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        name = self.open(scope)
        routed = _as_get(scope)
        started = time.perf_counter()
        status = 0  # until an answer has begun

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] += self.headers(name)
            await send(message)

        try:
            await self.app(routed, receive, send_with_id)
        except Exception as error:
            answer = self.failure(error, name)
            if status == 0:
                await answer(scope, receive, send_with_id)
        finally:
            self.close(scope, getattr(routed.get("route"), "name", "unknown"), status, time.perf_counter() - started)

    def open(self, scope: Scope) -> str:
        name = scope.setdefault("state", {})["request_id"] = _id_of(scope)
        return name

    def headers(self, name: str) -> tuple[tuple[bytes, bytes], ...]:
        return (b"x-request-id", name.encode()), _NO_SNIFFING

    def failure(self, error: Exception, name: str) -> Response:
        log.error("request failed", request_id=name, exc_info=error)
        return render(Problem("the error was logged under this request id"), name)

    def close(self, scope: Scope, route: str, status: int, seconds: float) -> None:
        timer = self._timers.get((route, status // 100))
        if timer is None:
            timer = self._timers[route, status // 100] = self._metrics.requests.labels(route, f"{status // 100}xx")
        timer.observe(seconds)
        if status >= 500 or self._verbose:
            facts = {"method": scope["method"], "path": scope["path"], "status": status, "ms": round(seconds * 1000, 1)}
            level = logging.WARNING if status >= 500 else logging.DEBUG
            log.log(level, "request answered", request_id=request_id(scope), **facts)


def _as_get(scope: Scope) -> Scope:
    """Routes HEAD to the handler of GET. The server omits the body, because its own scope still says HEAD."""
    return {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope


def _id_of(scope: Scope) -> str:
    sent = sent_header(scope, b"x-request-id")
    return sent if sent is not None and _SAFE_ID.fullmatch(sent) else f"{random.getrandbits(128):032x}"
