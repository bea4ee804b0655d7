"""The base class of background services, which run at an interval, and at once when woken."""

import asyncio
from collections.abc import Awaitable, Callable


class PeriodicService:
    """A background service. A subclass implements `run_once`. `maintenance/services.py` calls
    `run_once` at an interval, and at once after `wake`.

    A service that is woken during a run runs once more.
    """

    def __init__(self) -> None:
        self._woken = asyncio.Event()

    async def run_once(self) -> None:
        raise NotImplementedError

    @property
    def is_woken(self) -> bool:
        """Whether the service has been woken since its last run began."""
        return self._woken.is_set()

    def wake(self) -> None:
        self._woken.set()

    def wake_after(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self.wake)

    async def wait(self, seconds: float) -> None:
        """Waits until the service is woken, at most `seconds`."""
        if not self._woken.is_set():
            timer = asyncio.get_running_loop().call_later(seconds, self.wake)
            try:
                await self._woken.wait()  # asyncio.timeout() would take longer than a run of most services
            finally:
                timer.cancel()
        self._woken.clear()


class FunctionService(PeriodicService):
    """A background service whose run is a call of one function."""

    def __init__(self, run: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._run = run

    async def run_once(self) -> None:
        await self._run()
