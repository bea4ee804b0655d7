"""A timer that repeats until it is stopped."""

import asyncio
from collections.abc import Callable


class RepeatingTimer:
    """Calls `callback` every `seconds`, for the first time when `seconds` have passed."""

    def __init__(self, seconds: float, callback: Callable[[], None]) -> None:
        self._seconds = seconds
        self._callback = callback
        self._schedule()

    def _schedule(self) -> None:
        self._handle = asyncio.get_running_loop().call_later(self._seconds, self._fire)

    def _fire(self) -> None:
        self._callback()
        self._schedule()

    def stop(self) -> None:
        self._handle.cancel()
