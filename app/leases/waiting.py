"""Where long polls wait: no task of their own, no database connection, no CPU. Woken first come first served, one per job."""

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Sequence

from app.metrics import Metrics


class Poll:
    """One parked claim. `wake` is remembered: if it comes while the poll is looking, the poll looks once more."""

    def __init__(self, queues: Sequence[str], job_types: frozenset[str] | None, worker_id: str | None) -> None:
        self.queues = queues
        self.job_types = job_types
        self.worker_id = worker_id
        self._woken = asyncio.Event()
        self.asleep = False

    @property
    def woken(self) -> bool:
        return self._woken.is_set()

    def wake(self) -> None:
        self._woken.set()

    def takes(self, job_type: str | None) -> bool:
        return self.job_types is None or job_type is None or job_type in self.job_types

    def look(self) -> None:
        """What happened before now will be seen by the look that begins now."""
        self._woken.clear()

    async def sleep(self, seconds: float) -> None:
        self.asleep = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        self.asleep = False


class WaitingRoom:
    """Polls by queue name (a queue that does not exist yet can be waited for too), in the order in which they came."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._polls: dict[str, dict[Poll, None]] = {}
        self.draining = False
        self.parked = 0

    @contextlib.contextmanager
    def park(self, poll: Poll) -> Iterator[Poll]:
        for queue in poll.queues:
            self._polls.setdefault(queue, {})[poll] = None
        self.parked += 1
        self._metrics.parked.set(self.parked)
        try:
            yield poll
        finally:
            self._leave(poll)

    def _leave(self, poll: Poll) -> None:
        for queue in poll.queues:
            polls = self._polls[queue]
            polls.pop(poll, None)
            if not polls:
                del self._polls[queue]
        self.parked -= 1
        self._metrics.parked.set(self.parked)
        if poll.woken:  # the word was meant for somebody who can use it
            for queue in poll.queues:
                self.wake(queue, [None])

    def wake(self, queue: str, job_types: Iterable[str | None]) -> None:
        """One poll per job: the longest asleep that takes its type, or else one that is looking just now."""
        polls = self._polls.get(queue)
        if not polls:
            return
        for job_type in job_types:
            chosen = _first(polls, job_type, asleep=True) or _first(polls, job_type, asleep=False)
            if chosen is not None:
                chosen.wake()

    def wake_worker(self, worker_id: str) -> None:
        for poll in self._all():
            if poll.worker_id == worker_id:
                poll.wake()

    def waiting(self, queue: str) -> int:
        return len(self._polls.get(queue, ()))

    def awaited(self) -> list[str]:
        return list(self._polls)

    def drain(self) -> None:
        self.draining = True
        for poll in self._all():
            poll.wake()

    def _all(self) -> set[Poll]:
        return {poll for polls in self._polls.values() for poll in polls}


def _first(polls: Iterable[Poll], job_type: str | None, *, asleep: bool) -> Poll | None:
    return next((poll for poll in polls if poll.asleep is asleep and not poll.woken and poll.takes(job_type)), None)
