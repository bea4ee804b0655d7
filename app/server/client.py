"""Whether the client is still there. A handler is never cancelled when its client leaves: `guard`, which has the connection, tells it."""

from collections.abc import Callable

from fastapi import Request


class Client:
    """`gone` turns true when the client leaves, and whoever asked with `on_leave` is told at once. While so much has been sent ahead that
    we do not read on (`unread`) nobody can tell: then it is as good as gone, and no job is lost on it."""

    __slots__ = ("_gone", "_told", "_unread")

    def __init__(self, unread: Callable[[], bool] = lambda: False) -> None:
        self._gone = False
        self._unread = unread
        self._told: Callable[[], None] | None = None

    @property
    def gone(self) -> bool:
        return self._gone or self._unread()

    def on_disconnect(self, tell: Callable[[], None]) -> None:
        self._told = tell
        if self._gone:
            tell()

    def left(self) -> None:
        self._gone = True
        if self._told is not None:
            self._told()


def client_of(request: Request) -> Client:
    client: Client = request.scope["state"]["client"]
    return client
