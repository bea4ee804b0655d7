"""Where long polls wait: no task of their own, no database connection, no CPU. Woken first come first served, one per job."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias, TypeVar

from app.leases.store import ClaimedRow
from app.metrics import Metrics

T = TypeVar("T")
Promise: TypeAlias = "asyncio.Future[ClaimedRow | None]"


class Word(NamedTuple):
    """That a job became claimable. Without a type it says only that there are some: perhaps many, of any type."""

    queue: str
    job_type: str | None


class Poll:
    """One parked claim. A word that comes while the poll is looking is kept: the poll looks once more, or passes it on."""

    def __init__(
        self,
        queues: Sequence[str],
        job_types: frozenset[str] | None,
        worker_id: str | None,
        lease_seconds: int | None = None,
        *,
        open_handed: bool = False,
    ) -> None:
        self.queues = queues
        self.job_types = job_types
        self.worker_id = worker_id
        self.lease_seconds = lease_seconds
        self.open_handed = open_handed  # whether it takes a job without looking for it
        self.asleep = False
        self._promised: Promise | None = None
        self._stirred = asyncio.Event()
        self._new: set[Word] = set()
        self._looked_for: set[Word] = set()

    @property
    def stirred(self) -> bool:
        return self._stirred.is_set()

    @property
    def free(self) -> bool:
        """To be handed a job."""
        return self.open_handed and self.asleep and self._promised is None and not self.stirred

    @property
    def unused(self) -> set[Word]:
        """What others should hear when this poll leaves."""
        return self._new | self._looked_for

    def stir(self) -> None:
        """Something other than a job: the client left, the server drains, there is a directive."""
        self._stirred.set()

    def tell(self, word: Word) -> None:
        self._new.add(word)
        self._stirred.set()

    def takes(self, job_type: str | None) -> bool:
        return self.job_types is None or job_type is None or job_type in self.job_types

    def look(self) -> None:
        """What happened before now will be seen by the look that begins now."""
        self._stirred.clear()
        self._looked_for |= self._new
        self._new = set()

    def found_nothing(self) -> None:
        """Others had them."""
        self._looked_for = set()

    def took(self, jobs: set[Word], *, all_there_were: bool) -> None:
        """A word is used up by the job it was about; one without a type only when nothing was left behind."""
        queues = {job.queue for job in jobs}
        used = {word for word in self._looked_for if word in jobs or (all_there_were and not word.job_type and word.queue in queues)}
        self._looked_for -= used

    def promise(self) -> Promise:
        """A job is being stored for it. However it wakes, it waits for what becomes of that."""
        self._promised = asyncio.get_running_loop().create_future()
        return self._promised

    def keep(self, promise: Promise, row: ClaimedRow | None) -> None:
        """The job; or none, as it was not stored: sleep on."""
        promise.set_result(row)
        if row is not None:
            self._stirred.set()
        elif self._promised is promise:
            self._promised = None

    async def sleep(self, seconds: float) -> ClaimedRow | None:
        """A job that was handed over meanwhile, or nothing."""
        self.asleep = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stirred.wait()
        self.asleep = False
        promised, self._promised = self._promised, None
        return await promised if promised is not None else None


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
        for word in poll.unused:
            self.wake(word.queue, [word.job_type])

    def wake(self, queue: str, job_types: Iterable[str | None]) -> None:
        """One poll per job."""
        polls = self._polls.get(queue)
        if not polls:
            return
        for job_type, count in Counter(job_types).items():
            for candidates in [polls] if job_type else _by_filter(polls):
                for poll in islice(_able(candidates, job_type), count):
                    poll.tell(Word(queue, job_type))

    def match(self, queue: str, jobs: Sequence[T], type_of: Callable[[T], str]) -> list[tuple[T, Poll]]:
        """Each job with a poll that it can be handed to, as far as there are any: the longest asleep gets the first that it takes."""
        left = list(jobs)
        pairs: list[tuple[T, Poll]] = []
        for poll in self._polls.get(queue, ()):
            if not left:
                break
            found = next((job for job in left if poll.takes(type_of(job))), None) if poll.free else None
            if found is not None:
                left.remove(found)
                pairs.append((found, poll))
        return pairs

    def wake_worker(self, worker_id: str) -> None:
        for poll in self.polls():
            if poll.worker_id == worker_id:
                poll.stir()

    def waiting(self, queue: str) -> int:
        return len(self._polls.get(queue, ()))

    def waits_for(self, queue: str, job_type: str) -> bool:
        """Whether anybody waits here who would take such a job."""
        return any(poll.takes(job_type) for poll in self._polls.get(queue, ()))

    def awaited(self) -> list[str]:
        return list(self._polls)

    def drain(self) -> None:
        self.draining = True
        for poll in self.polls():
            poll.stir()

    def polls(self) -> set[Poll]:
        return {poll for polls in self._polls.values() for poll in polls}


def _by_filter(polls: Iterable[Poll]) -> list[list[Poll]]:
    """A job of unknown type may be for any of them: one poll of each kind looks, or the wrong one would look for ever."""
    kinds: dict[frozenset[str] | None, list[Poll]] = {}
    for poll in polls:
        kinds.setdefault(poll.job_types, []).append(poll)
    return list(kinds.values())


def _able(polls: Iterable[Poll], job_type: str | None) -> Iterator[Poll]:
    """The longest asleep first; then those that are looking just now."""
    for asleep in (True, False):
        for poll in polls:
            if poll.asleep is asleep and not poll.stirred and poll.takes(job_type):
                yield poll
