"""Concurrent clients: calls in the background, claims on raw sockets, and values of /metrics."""

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

from tests.api_client import Api, Json

T = TypeVar("T")


class Background:
    """Runs calls in threads while the test continues."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool

    def submit(self, call: Callable[..., T], *args: Any, **fields: Any) -> "Future[T]":
        return self._pool.submit(call, *args, **fields)

    def map(self, call: Callable[[Any], T], items: Iterable[Any]) -> Iterator[T]:
        return self._pool.map(call, items)

    def claim(self, api: Api, **fields: Any) -> "Future[Json]":
        return self._pool.submit(api.claim, **{"wait_seconds": 25, **fields})

    def claims(self, count: int, api: Api, **fields: Any) -> "list[Future[Json]]":
        return [self.claim(api, **fields) for _ in range(count)]

    def together(self, *calls: Callable[[], T]) -> list[T]:
        """Runs all calls at the same moment. Returns their results in the order of the calls."""
        barrier = Barrier(len(calls))

        def run(call: Callable[[], T]) -> T:
            barrier.wait(30)
            return call()

        return [future.result(60) for future in [self._pool.submit(run, call) for call in calls]]


@contextmanager
def background_calls() -> Iterator[Background]:
    with ThreadPoolExecutor(max_workers=64) as pool:
        yield Background(pool)


def jobs_of_finished_polls(polls: "Iterable[Future[Json]]") -> list[Json]:
    """Returns the jobs claimed by the polls that have finished."""
    return [job for poll in polls if poll.done() for job in poll.result()["jobs"]]


def metric_value(http: httpx.Client, name: str) -> int:
    """Reads a value from /metrics; 0 for a counter that has never been incremented."""
    match = re.search(rf"^longshore_{name} (\S+)$", http.get("/metrics").text, re.MULTILINE)
    return round(float(match[1])) if match else 0


def parked_polls(http: httpx.Client) -> int:
    return metric_value(http, "polls_parked")


class RawClaim:
    """A claim on a raw socket, so that the test can disconnect at any moment."""

    def __init__(self, base: str, body: Json, key: str | None = None) -> None:
        url = urlsplit(base)
        assert url.hostname is not None
        self._socket = socket.create_connection((url.hostname, url.port or 80))
        data = json.dumps(body).encode()
        key_header = f"Idempotency-Key: {key}\r\n" if key else ""
        self._socket.sendall(
            f"POST /claim HTTP/1.1\r\nHost: test\r\n{key_header}Content-Length: {len(data)}\r\n\r\n".encode() + data
        )

    def cut(self) -> None:
        self._socket.close()

    def half_close(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def read_to_end(self) -> bytes:
        """Reads until the broker closes the connection."""
        chunks = []
        while chunk := self._socket.recv(65536):
            chunks.append(chunk)
        self._socket.close()
        return b"".join(chunks)


def wait_until_read(http: httpx.Client) -> None:
    """Waits until the broker's event loop has read everything that reached its sockets before."""
    for _ in range(3):
        assert http.get("/livez").status_code == 200
