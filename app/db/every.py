"""A timer that goes on until it is stopped."""

import asyncio
from collections.abc import Callable


class Timer:
    """Calls every so many seconds, until it is stopped."""

    def __init__(self, seconds: float, call: Callable[[], None]) -> None:
        self._seconds = seconds
        self._call = call
        self._begin()

    def _begin(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._again)

    def _again(self) -> None:
        self._call()
        self._begin()

    def stop(self) -> None:
        self._timer.cancel()
