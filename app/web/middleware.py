"""Around every request, as plain ASGI (a wrapped handler would never hear that its client left): id, log line, timing."""

import logging
import random
import re
import time

from prometheus_client import Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import Problem
from app.log import log
from app.metrics import Metrics
from app.web.headers import request_id
from app.web.problems import render

_NO_SNIFFING = (b"x-content-type-options", b"nosniff")  # what users sent stays JSON, whatever a browser thinks of it
_SAFE_ID = re.compile(rb"[A-Za-z0-9._:-]{1,120}")


class Envelope:
    """Gives the request an id (the client's own if it is a sane one), counts and logs its end."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self._metrics = metrics
        self._verbose = log.is_enabled_for(logging.DEBUG)
        self._timers: dict[tuple[str, int], Histogram] = {}  # to look one up among the labels takes longer than to use it

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        name = _id_of(scope)
        scope.setdefault("state", {})["request_id"] = name
        started = time.perf_counter()
        status = 0  # until an answer has begun

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] += ((b"x-request-id", name.encode()), _NO_SNIFFING)
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except Exception as error:
            log.error("request failed", request_id=name, exc_info=error)
            if status == 0:
                await render(Problem("the error was logged under this request id"), name)(scope, receive, send_with_id)
        finally:
            self._done(scope, status, time.perf_counter() - started)

    def _done(self, scope: Scope, status: int, seconds: float) -> None:
        timer = getattr(scope.get("route"), "name", "unknown"), status // 100
        if timer not in self._timers:
            self._timers[timer] = self._metrics.requests.labels(timer[0], f"{timer[1]}xx")
        self._timers[timer].observe(seconds)
        if status >= 500 or self._verbose:
            facts = {"method": scope["method"], "path": scope["path"], "status": status, "ms": round(seconds * 1000, 1)}
            level = logging.WARNING if status >= 500 else logging.DEBUG
            log.log(level, "request answered", request_id=request_id(scope), **facts)


def _id_of(scope: Scope) -> str:
    sent = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    return sent.decode() if _SAFE_ID.fullmatch(sent) else f"{random.getrandbits(128):032x}"
