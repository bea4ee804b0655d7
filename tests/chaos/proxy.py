"""The network between clients, brokers and Postgres: `python -m tests.chaos.proxy`, commands on stdin.

A link leads from a listening socket to a target. Its modes:

- `open`: everything is forwarded.
- `cut`: connections are reset, new ones are refused.
- `black_hole`: nothing is forwarded, and no side gets an error.
- `lost_replies`: requests are forwarded, responses are not.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Literal, cast

import msgspec
import uvloop

Mode = Literal["open", "cut", "black_hole", "lost_replies"]


class Command(msgspec.Struct):
    """One line on stdin.

    `late`: data held back by a black hole arrives when it ends; else a reset."""

    link: str
    do: Literal["listen", "target", "mode"]
    address: str = ""
    mode: Mode = "open"
    late: bool = False


class Endpoint(asyncio.Protocol):
    """One of the two endpoints of a connection. It forwards received data to its peer."""

    def __init__(self, link: "Link", *, near: bool) -> None:
        self.link = link
        self.near = near
        self.peer: Endpoint | None = None
        self.transport: asyncio.Transport | None = None
        self.buffered: list[bytes] = []
        self.has_lost_data = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.link.endpoints.add(self)
        if self.link.mode == "black_hole":
            self.transport.pause_reading()
        if self.near:
            self.link.connect(self)

    def data_received(self, data: bytes) -> None:
        if self.link.mode == "lost_replies" and not self.near:
            self.has_lost_data = True
        elif self.peer is None or self.peer.transport is None:
            self.buffered.append(data)
        else:
            self.peer.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.link.endpoints.discard(self)
        self.transport = None
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.abort() if error else self.peer.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class Link:
    def __init__(self) -> None:
        self.target = ""
        self.mode: Mode = "open"
        self.endpoints: set[Endpoint] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.AbstractServer | None = None  # a reference keeps it from being garbage-collected

    async def listen(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        make: Callable[[], Endpoint] = lambda: Endpoint(self, near=True)  # noqa: E731
        if "/" in address:
            self._server = await loop.create_unix_server(make, address, backlog=1000)
            os.chmod(address, 0o777)
        else:
            self._server = await loop.create_server(make, "127.0.0.1", int(address), backlog=1000)

    def connect(self, near: Endpoint) -> None:
        task = asyncio.get_running_loop().create_task(self._connect(near))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, near: Endpoint) -> None:
        while self.mode == "black_hole":  # noqa: ASYNC110 (like a packet that is sent again later)
            await asyncio.sleep(0.05)
        far = Endpoint(self, near=False)
        try:
            if self.mode == "cut":
                raise ConnectionRefusedError
            await self._reach(far)
        except OSError:
            near.abort()
            return
        if near.transport is None:
            far.abort()
            return
        near.peer, far.peer = far, near
        for data in near.buffered:
            if far.transport is not None:
                far.transport.write(data)

    async def _reach(self, far: Endpoint) -> None:
        loop = asyncio.get_running_loop()
        if "/" in self.target:
            await loop.create_unix_connection(lambda: far, self.target)
        else:
            await loop.create_connection(lambda: far, "127.0.0.1", int(self.target))

    def set_mode(self, mode: Mode, *, late: bool) -> None:
        before, self.mode = self.mode, mode
        for end in list(self.endpoints):
            if (
                mode == "cut"
                or (before == "lost_replies" and end.has_lost_data)
                or (before == "black_hole" and not late)
            ):
                end.abort()
            elif end.transport is not None:
                end.transport.pause_reading() if mode == "black_hole" else end.transport.resume_reading()


async def main() -> None:
    links: dict[str, Link] = {}
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        command = msgspec.json.decode(line, type=Command)
        link = links.setdefault(command.link, Link())
        if command.do == "listen":
            await link.listen(command.address)
        elif command.do == "target":
            link.target = command.address
        else:
            link.set_mode(command.mode, late=command.late)
        print(command.link, flush=True)


if __name__ == "__main__":
    uvloop.run(main())
