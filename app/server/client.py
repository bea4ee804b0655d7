"""Whether the client of a request is still connected.

A handler is never cancelled when its client disconnects. `HardenedConnection`, which has the
socket, notifies the `Client` instead.
"""

from collections.abc import Callable

from fastapi import Request


class Client:
    """The client of one request.

    `is_disconnected` turns true when the client disconnects, and the `on_disconnect` callback runs
    at once. If the client has pipelined so much that the connection stops reading
    (`is_read_paused`), a disconnect is not noticed. Then the client counts as disconnected, so that
    no job is lost to it.
    """

    __slots__ = ("_callback", "_disconnected", "_is_read_paused")

    def __init__(self, is_read_paused: Callable[[], bool] = lambda: False) -> None:
        self._disconnected = False
        self._is_read_paused = is_read_paused
        self._callback: Callable[[], None] | None = None

    @property
    def is_disconnected(self) -> bool:
        return self._disconnected or self._is_read_paused()

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Registers the callback; runs it now if the client has disconnected already."""
        self._callback = callback
        if self._disconnected:
            callback()

    def disconnect(self) -> None:
        """Marks the client as disconnected. The connection calls this."""
        self._disconnected = True
        if self._callback is not None:
            self._callback()


def get_client(request: Request) -> Client:
    client: Client = request.scope["state"]["client"]
    return client
