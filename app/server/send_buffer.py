"""The responses that clients have not read yet: how long one connection may hold them, and how many
bytes of memory all connections of a process may hold.

The states of a `SendBuffer`:

    writable -> stalled    a write leaves more than UNCOUNTED_RESPONSE_BYTES in the buffer of the
                           transport
    stalled  -> writable   the client has read nearly all of them
    stalled  -> reset      the send timeout is over and the client has read too little; or all
                           connections together hold too many bytes, and this one stalled first
"""

import asyncio
from typing import TYPE_CHECKING

from prometheus_client import Counter

if TYPE_CHECKING:
    from app.server.limits import ConnectionLimits

# Up to 4 KiB in the buffer of a connection do not count. In 20,000 connections that is 80 MB.
UNCOUNTED_RESPONSE_BYTES = 4 * 1024


class UnreadBytes:
    """Counts the bytes that stalled connections hold, in the order in which they stalled.

    If there are too many, resets the connections that stalled first. A client that reads leaves the
    order and joins it again at the end, so it is not reset however large its response is.
    """

    def __init__(self, max_bytes: int, resets: Counter) -> None:
        self._max_bytes = max_bytes
        self._resets = resets
        self._by_connection: dict[SendBuffer, int] = {}
        self.total = 0

    def count(self, buffer: "SendBuffer", size: int) -> None:
        """Sets the number of bytes that a stalled connection holds."""
        self.total += size - self._by_connection.get(buffer, 0)
        self._by_connection[buffer] = size
        while self.total > self._max_bytes:
            self.reset(next(iter(self._by_connection)))

    def uncount(self, buffer: "SendBuffer") -> None:
        self.total -= self._by_connection.pop(buffer, 0)

    def reset(self, buffer: "SendBuffer") -> None:
        """Resets the connection: its unread responses would stay in memory even after a close."""
        self.uncount(buffer)
        self._resets.inc()
        buffer.transport.abort()


class SendBuffer:
    """The responses that one client has not read yet."""

    __slots__ = ("_held_bytes", "_limits", "_loop", "_unsent_at_timeout_start", "_writable", "transport")

    def __init__(
        self, transport: asyncio.Transport, limits: "ConnectionLimits", loop: asyncio.AbstractEventLoop
    ) -> None:
        self.transport = transport
        self._writable: asyncio.Future[None] | None = None  # pending while stalled
        self._limits = limits
        self._loop = loop
        self._unsent_at_timeout_start = 0  # bytes
        self._held_bytes = 0  # bytes of the response that the waiting handler keeps in memory
        transport.set_write_buffer_limits(high=UNCOUNTED_RESPONSE_BYTES)

    @property
    def is_stalled(self) -> bool:
        return self._writable is not None

    def stall(self) -> None:
        """Starts the send timeout. The transport calls this when its buffer is full."""
        self._writable = self._writable or self._loop.create_future()
        self._unsent_at_timeout_start = self.transport.get_write_buffer_size()
        self._limits.send_timeouts.join(self, self._loop.time())
        self._count()

    def resume(self) -> None:
        self._limits.send_timeouts.leave(self)
        self._limits.unread.uncount(self)
        self._held_bytes = 0
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    async def wait(self, held_bytes: int) -> None:
        """Waits while stalled. `held_bytes` is what the caller keeps in memory until then."""
        self._held_bytes = held_bytes
        self._count()
        if self._writable is not None:
            await self._writable

    def on_timeout(self) -> None:
        """Resets the connection, unless the client has read enough since the timeout began."""
        unsent = self.transport.get_write_buffer_size()
        if self._unsent_at_timeout_start - unsent >= self._limits.min_progress_bytes:
            self._limits.unread.uncount(self)  # it is no longer the first that stalled
            self.stall()  # the timeout starts again
        else:
            self._limits.unread.reset(self)

    def _count(self) -> None:
        self._limits.unread.count(self, self.transport.get_write_buffer_size() + self._held_bytes)
