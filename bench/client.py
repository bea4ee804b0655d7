"""A lean HTTP/1.1 client: prebuilt requests, keep-alive, one request in flight per connection, and as little parsing as will do.

httpx took 2.5 to 7.5 ms of CPU per request at this concurrency, on cores that the server needs too.
"""

import asyncio
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, TypeAlias, TypeVar, cast

HOST = "127.0.0.1"


class Answer(NamedTuple):
    status: int
    body: bytes

    def expect(self, status: int) -> bytes:
        """A benchmark that counts refusals as jobs is a lie."""
        if self.status != status:
            raise WrongAnswer(f"status {self.status}, not {status}: {self.body[:500].decode(errors='replace')}")
        return self.body


class WrongAnswer(Exception):
    """The server did not say what it should have said."""


# What one connection does: yields requests, is sent the answers.
Script: TypeAlias = Generator[bytes, Answer, None]


class Requests:
    """Builds requests as bytes, with the key if there is one."""

    def __init__(self, key: str | None = None) -> None:
        self._headers = f"Host: {HOST}\r\nContent-Type: application/json\r\n".encode()
        if key is not None:
            self._headers += f"Authorization: Bearer {key}\r\n".encode()

    def post(self, path: str, body: bytes) -> bytes:
        return b"POST %b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (path.encode(), self._headers, len(body), body)

    def get(self, path: str) -> bytes:
        return b"GET %b HTTP/1.1\r\n%b\r\n" % (path.encode(), self._headers)


class Exchange(asyncio.Protocol):
    """One connection. `answered` is called with every whole answer."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._got = b""
        self._body_at = self._ends = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def write(self, request: bytes) -> None:
        assert self._transport is not None
        self._transport.write(request)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        got = self._got = self._got + data if self._got else data
        if not self._ends:
            head = got.find(b"\r\n\r\n")
            if head < 0:
                return
            self._body_at = head + 4
            self._ends = head + 4 + _length(got[:head])
        if len(got) >= self._ends:
            answer = Answer(int(got[9:12]), got[self._body_at :])
            self._got, self._ends = b"", 0
            self.answered(answer)

    def answered(self, answer: Answer) -> None:
        raise NotImplementedError


def _length(head: bytes) -> int:
    _, found, rest = head.lower().partition(b"content-length:")
    if not found:
        raise WrongAnswer(f"an answer without a length: {head.decode(errors='replace')}")
    return int(rest.partition(b"\r\n")[0])


class Scripted(Exchange):
    """Plays a script: the next request goes out from within the answer's callback, without a future or a task."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self._script = script
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._play(None)

    def answered(self, answer: Answer) -> None:
        self._play(answer)

    def _play(self, answer: Answer | None) -> None:
        try:
            self.write(next(self._script) if answer is None else self._script.send(answer))
        except StopIteration:
            self._end(None)
        except Exception as error:  # it belongs to whoever awaits the script
            self._end(error)

    def _end(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None) if error is None else self.done.set_exception(error)
        self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error or ConnectionError("the server closed the connection"))


class Client(Exchange):
    """For code that awaits."""

    def __init__(self) -> None:
        super().__init__()
        self._answer: asyncio.Future[Answer] | None = None

    async def send(self, request: bytes) -> Answer:
        self._answer = asyncio.get_running_loop().create_future()
        self.write(request)
        return await self._answer

    def answered(self, answer: Answer) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionError("the server closed the connection"))


Kind = TypeVar("Kind", bound=Exchange)


async def connect(ports: Sequence[int], make: Sequence[Callable[[], Kind]]) -> list[Kind]:
    """One connection for each, spread over the ports in turn."""
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(one, HOST, ports[n % len(ports)]))[1] for n, one in enumerate(make)]
