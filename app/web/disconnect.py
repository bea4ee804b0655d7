"""Whether the client is still there. A handler is never cancelled when its client leaves: `guard`, which has the connection, tells it."""

from collections.abc import Callable

from fastapi import Request


class Client:
    """`gone` turns true when the client leaves, and whoever asked with `on_leave` is told at once."""

    __slots__ = ("_told", "gone")

    def __init__(self) -> None:
        self.gone = False
        self._told: Callable[[], None] | None = None

    def on_leave(self, tell: Callable[[], None]) -> None:
        self._told = tell
        if self.gone:
            tell()

    def left(self) -> None:
        self.gone = True
        if self._told is not None:
            self._told()


def client_of(request: Request) -> Client:
    client: Client = request.scope["state"]["client"]
    return client
