"""Whether the client is still there. A handler is never cancelled when its client leaves: somebody has to await `receive()`."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import Request


class Client:
    """`gone` turns true when the client leaves, and whoever asked with `on_leave` is told at once."""

    def __init__(self) -> None:
        self.gone = False
        self._told: Callable[[], None] | None = None

    def on_leave(self, tell: Callable[[], None]) -> None:
        self._told = tell

    def left(self) -> None:
        self.gone = True
        if self._told is not None:
            self._told()


@asynccontextmanager
async def watched(request: Request) -> AsyncIterator[Client]:
    """Only for requests whose body has been read: what `receive()` then says can only be that the client left."""
    client = Client()
    task = asyncio.create_task(_watch(request, client), name="watch client")
    try:
        yield client
    finally:
        task.cancel()


async def _watch(request: Request, client: Client) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    client.left()
