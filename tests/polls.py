"""Many clients at once: calls in the background, connections that can be cut, and what a broker counts."""

import json
import re
import socket
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from tests.api import Api, Json

T = TypeVar("T")


class Background:
    """Calls that wait while the test goes on."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool

    def submit(self, call: Callable[..., T], *args: Any, **fields: Any) -> "Future[T]":
        return self._pool.submit(call, *args, **fields)

    def map(self, call: Callable[[Any], T], things: Iterable[Any]) -> Iterator[T]:
        return self._pool.map(call, things)

    def claim(self, api: Api, **fields: Any) -> "Future[Json]":
        return self._pool.submit(api.claim, **{"wait_seconds": 25, **fields})

    def claims(self, count: int, api: Api, **fields: Any) -> "list[Future[Json]]":
        return [self.claim(api, **fields) for _ in range(count)]

    def together(self, *calls: Callable[[], T]) -> list[T]:
        """All at the same moment; their answers in the order of the calls."""
        barrier = Barrier(len(calls))

        def started(call: Callable[[], T]) -> T:
            barrier.wait(30)
            return call()

        return [future.result(60) for future in [self._pool.submit(started, call) for call in calls]]


@contextmanager
def background_calls() -> Iterator[Background]:
    with ThreadPoolExecutor(max_workers=64) as pool:
        yield Background(pool)


def jobs_of(polls: "Iterable[Future[Json]]") -> list[Json]:
    """What the polls that have been answered got."""
    return [job for poll in polls if poll.done() for job in poll.result()["jobs"]]


def counted(http: httpx.Client, name: str) -> int:
    """A figure of /metrics; a counter that has never counted is 0."""
    found = re.search(rf"^longshore_{name} (\S+)$", http.get("/metrics").text, re.MULTILINE)
    return round(float(found[1])) if found else 0


def parked(http: httpx.Client) -> int:
    return counted(http, "polls_parked")


class RawClaim:
    """A claim on a socket of its own, so that the client can leave at any moment."""

    def __init__(self, base: str, body: Json, key: str | None = None) -> None:
        place = urlsplit(base)
        assert place.hostname is not None
        self._socket = socket.create_connection((place.hostname, place.port or 80))
        data = json.dumps(body).encode()
        keyed = f"Idempotency-Key: {key}\r\n" if key else ""
        self._socket.sendall(
            f"POST /claim HTTP/1.1\r\nHost: test\r\n{keyed}Content-Length: {len(data)}\r\n\r\n".encode() + data
        )

    def cut(self) -> None:
        self._socket.close()

    def half_close(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def answered(self) -> bytes:
        """Everything until the broker closes its side."""
        chunks = []
        while chunk := self._socket.recv(65536):
            chunks.append(chunk)
        self._socket.close()
        return b"".join(chunks)


def heard_of(http: httpx.Client) -> None:
    """What reached the broker's sockets before this call has been read by its loop when this returns."""
    for _ in range(3):
        assert http.get("/livez").status_code == 200
