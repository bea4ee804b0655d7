"""HTTP byte by byte: a socket that sends what it is told, and reads answers until the broker ends the connection."""

import json
import re
import socket
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.api import Json

GET = b"GET /livez HTTP/1.1\r\nHost: test\r\n\r\n"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Json:
        told: Json = json.loads(self.body)
        return told


class Raw:
    """One connection."""

    def __init__(self, base: str) -> None:
        place = urlsplit(base)
        assert place.hostname is not None
        self.socket = socket.create_connection((place.hostname, place.port or 80), timeout=30)
        self._read = b""

    def send(self, *packets: bytes) -> None:
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for packet in packets:
            self.socket.sendall(packet)

    def answer(self) -> Answer:
        """The next one."""
        while b"\r\n\r\n" not in self._read:
            assert self._more(), self._read
        head, _, self._read = self._read.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        length = int(headers.get("content-length", "0"))
        while len(self._read) < length:
            assert self._more(), self._read
        body, self._read = self._read[:length], self._read[length:]
        return Answer(int(status.split()[1]), headers, body)

    def answers(self) -> list[Answer]:
        """All of them, until the broker has nothing more to say."""
        found = []
        while self._read or self._more():
            found.append(self.answer())
        return found

    def refusal(self) -> Answer:
        """The only answer, in the shape of all problems, after which the connection ends."""
        (answer,) = self.answers()
        check_refusal(answer)
        return answer

    def received(self) -> bytes:
        """Every byte until the broker ends the connection."""
        while self._more():
            pass
        return self._read

    def close(self) -> None:
        self.socket.close()

    def _more(self) -> bool:
        chunk = self.socket.recv(65536)
        self._read += chunk
        return bool(chunk)


def check_refusal(answer: Answer) -> None:
    assert answer.headers["connection"] == "close"
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == answer.status
    assert problem["type"] == f"/problems/{problem['code']}"
    assert problem["title"]
    assert problem["detail"]
    assert re.fullmatch(r"[0-9a-f]{32}", problem["instance"])
    assert answer.headers["x-request-id"] == problem["instance"]


def post(path: str, body: bytes, *headers: bytes) -> bytes:
    lines = [f"POST {path} HTTP/1.1".encode(), b"Host: test", f"Content-Length: {len(body)}".encode(), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chunked(path: str, *headers: bytes) -> bytes:
    """The head only."""
    lines = [f"POST {path} HTTP/1.1".encode(), b"Host: test", b"Transfer-Encoding: chunked", *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)
