"""An HTTP client on a raw socket: sends any bytes, and reads until the broker closes."""

import json
import re
import socket
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.api_client import Json

GET = b"GET /livez HTTP/1.1\r\nHost: test\r\n\r\n"


class RawResponse(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Json:
        decoded: Json = json.loads(self.body)
        return decoded


class RawConnection:
    """One client connection."""

    def __init__(self, base: str) -> None:
        url = urlsplit(base)
        assert url.hostname is not None
        self.socket = socket.create_connection((url.hostname, url.port or 80), timeout=30)
        self._received = b""

    def send(self, *packets: bytes) -> None:
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for packet in packets:
            self.socket.sendall(packet)

    def response(self) -> RawResponse:
        """Reads the next response."""
        while b"\r\n\r\n" not in self._received:
            assert self._receive(), self._received
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        length = int(headers.get("content-length", "0"))
        while len(self._received) < length:
            assert self._receive(), self._received
        body, self._received = self._received[:length], self._received[length:]
        return RawResponse(int(status.split()[1]), headers, body)

    def responses(self) -> list[RawResponse]:
        """Reads all responses until the broker closes the connection."""
        responses = []
        while self._received or self._receive():
            responses.append(self.response())
        return responses

    def error_response(self) -> RawResponse:
        """Reads the only response, which must be a problem, and the end of the connection."""
        (response,) = self.responses()
        check_error_response(response)
        return response

    def received(self) -> bytes:
        """Reads all bytes until the broker closes the connection."""
        while self._receive():
            pass
        return self._received

    def close(self) -> None:
        self.socket.close()

    def _receive(self) -> bool:
        chunk = self.socket.recv(65536)
        self._received += chunk
        return bool(chunk)


def check_error_response(response: RawResponse) -> None:
    assert response.headers["connection"] == "close"
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["status"] == response.status
    assert problem["type"] == f"/problems/{problem['code']}"
    assert problem["title"]
    assert problem["detail"]
    assert re.fullmatch(r"[0-9a-f]{32}", problem["instance"])
    assert response.headers["x-request-id"] == problem["instance"]


def post(path: str, body: bytes, *headers: bytes) -> bytes:
    lines = [f"POST {path} HTTP/1.1".encode(), b"Host: test", f"Content-Length: {len(body)}".encode(), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chunked(path: str, *headers: bytes) -> bytes:
    """The head of a request with a chunked body."""
    lines = [f"POST {path} HTTP/1.1".encode(), b"Host: test", b"Transfer-Encoding: chunked", *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)
