"""Where long polls wait: no task of their own, no database connection, no CPU. Woken first come first served, one per job."""

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import NamedTuple, TypeAlias
from uuid import UUID

from app.jobs.store import NewJob
from app.leases.store import ClaimedRow
from app.metrics import Metrics

Reservation: TypeAlias = "asyncio.Future[Sequence[ClaimedRow]]"
JobTypeNames: TypeAlias = frozenset[str] | None

PATIENCE = 2.0  # a commit that takes longer waits for a standby or a disk: whoever is still there need not
MAX_SCANNED = 32  # of whatever size, they fit into one answer

_numbers = itertools.count()


class WakeUp(NamedTuple):
    """That a job became claimable. Without a type it says only that there are some: perhaps many, of any type."""

    queue: str
    job_type: str | None


class Poller:
    """One parked claim. A word that comes while the poll is looking is kept: the poll looks once more, or passes it on."""

    def __init__(
        self,
        queues: Sequence[str],
        job_types: frozenset[str] | None,
        worker_id: str | None,
        lease_seconds: int | None = None,
        takes_handed: int = 0,
    ) -> None:
        self.queues = queues
        self.job_types = job_types
        self.worker_id = worker_id
        self.lease_seconds = lease_seconds
        self.takes_handed = takes_handed  # how many jobs it takes without looking for them
        self.number = next(_numbers)
        self.stirred = False
        self._sleep: asyncio.Future[None] | None = None
        self._promised: Reservation | None = None
        self._new: set[WakeUp] = set()
        self._looked_for: set[WakeUp] = set()

    @property
    def is_asleep(self) -> bool:
        return self._sleep is not None

    @property
    def free(self) -> bool:
        """To be told of a job, or to be handed one: who is promised some will not look for others."""
        return self._promised is None and not self.stirred

    @property
    def unconsumed(self) -> set[WakeUp]:
        """What others should hear when this poll leaves."""
        return self._new | self._looked_for

    def wake_up(self) -> None:
        """By something other than a job: the client left, the server drains, there is a directive."""
        self.stirred = True
        self._end_sleep()

    def tell(self, word: WakeUp) -> None:
        self._new.add(word)
        self.wake_up()

    def look(self) -> None:
        """What happened before now will be seen by the look that begins now."""
        self.stirred = False
        self._looked_for |= self._new
        self._new = set()

    def nothing_found(self) -> None:
        """Others had them."""
        self._looked_for = set()

    def claimed(self, jobs: set[WakeUp], *, all_there_were: bool) -> None:
        """A word is used up by the job it was about; one without a type only when nothing was left behind."""
        queues = {job.queue for job in jobs}
        used = {
            word
            for word in self._looked_for
            if word in jobs or (all_there_were and not word.job_type and word.queue in queues)
        }
        self._looked_for -= used

    def promise(self) -> Reservation:
        """Jobs are being stored for it. However it wakes, it waits for a while for what becomes of that."""
        self._promised = asyncio.get_running_loop().create_future()
        return self._promised

    def keep(self, promise: Reservation, rows: Sequence[ClaimedRow]) -> bool:
        """The jobs; or none, as they were not stored: sleep on. False: nobody waits for them any more."""
        if promise.done():
            return False
        promise.set_result(rows)
        if rows:
            self.wake_up()
        elif self._promised is promise:
            self._promised = None
        return True

    async def sleep(self, seconds: float) -> Sequence[ClaimedRow]:
        """What was handed over meanwhile."""
        if not self.stirred:
            await self._fall_asleep(seconds)
        promised, self._promised = self._promised, None
        if promised is None:
            return ()
        await asyncio.wait([promised], timeout=PATIENCE)
        return promised.result() if promised.done() or not promised.cancel() else ()

    async def _fall_asleep(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._sleep = loop.create_future()
        alarm = loop.call_later(seconds, self._end_sleep)
        try:
            await self._sleep
        finally:
            alarm.cancel()
            self._sleep = None

    def _end_sleep(self) -> None:
        if self._sleep is not None and not self._sleep.done():
            self._sleep.set_result(None)


class PollerRegistry:
    """Polls by queue name (a queue that does not exist yet can be waited for too) and by what they take, in the order of their coming."""

    def __init__(self, metrics: Metrics) -> None:
        self._polls: dict[str, dict[JobTypeNames, dict[Poller, None]]] = {}
        self.draining = False
        self.parked = 0
        metrics.parked.set_function(lambda: self.parked)

    def park(self, poll: Poller) -> None:
        for queue in poll.queues:
            self._polls.setdefault(queue, {}).setdefault(poll.job_types, {})[poll] = None
        self.parked += 1

    def leave(self, poll: Poller) -> None:
        for queue in poll.queues:
            kinds = self._polls[queue]
            del kinds[poll.job_types][poll]
            if not kinds[poll.job_types]:
                del kinds[poll.job_types]
            if not kinds:
                del self._polls[queue]
        self.parked -= 1
        for word in poll.unconsumed:
            self.wake(word.queue, [word.job_type])

    def wake(self, queue: str, job_types: Iterable[str | None]) -> None:
        """One poll per job. A job of unknown type may be for any of them: one poll of each kind looks, or the wrong one would for ever."""
        if queue not in self._polls:
            return
        for job_type, count in Counter(job_types).items():
            kinds = self._polls[queue]
            for candidates in [self._that_take(queue, {job_type})] if job_type else list(kinds.values()):
                for poll in islice(_longest_asleep_first(candidates), count):
                    poll.tell(WakeUp(queue, job_type))

    def match(self, queue: str, jobs: Iterable[NewJob]) -> list[tuple[Poller, list[NewJob]]]:
        """Polls and the jobs that can be handed to them, as far as there are any. Each takes the first that it may have."""
        left: dict[str, list[NewJob]] = {}
        for job in sorted(jobs, key=_in_order, reverse=True):
            left.setdefault(job.job_type, []).append(job)
        pairs: list[tuple[Poller, list[NewJob]]] = []
        for poll in self._that_take(queue, left.keys()):
            if not left:
                break
            if poll.is_asleep and poll.free and (taken := _taken(poll, left)):
                pairs.append((poll, taken))
        return pairs

    def _that_take(self, queue: str, job_types: Collection[str]) -> Iterable[Poller]:
        """In the order in which they came. Those of other kinds are not looked at: there may be thousands."""
        kinds = self._polls.get(queue, {})
        able = [polls for kind, polls in kinds.items() if kind is None or not kind.isdisjoint(job_types)]
        return able[0] if len(able) == 1 else heapq.merge(*able, key=attrgetter("number"))

    def wake_worker(self, worker_id: str) -> None:
        for poll in self.polls():
            if poll.worker_id == worker_id:
                poll.wake_up()

    def waiting(self, queue: str) -> int:
        return sum(map(len, self._polls.get(queue, {}).values()))

    def has_poller_for(self, queue: str, job_type: str) -> bool:
        """Whether anybody waits here who would take such a job."""
        return any(kind is None or job_type in kind for kind in self._polls.get(queue, ()))

    def awaited(self) -> list[str]:
        return list(self._polls)

    def drain(self) -> None:
        self.draining = True
        for poll in self.polls():
            poll.wake_up()

    def polls(self) -> set[Poller]:
        return {poll for kinds in self._polls.values() for polls in kinds.values() for poll in polls}


def _longest_asleep_first(polls: Iterable[Poller]) -> Iterator[Poller]:
    """Then those that are looking just now."""
    looking = []
    for poll in polls:
        if poll.free and poll.is_asleep:
            yield poll
        elif poll.free:
            looking.append(poll)
    yield from looking


def _in_order(job: NewJob) -> tuple[int, UUID]:
    return -job.priority, job.id


def _taken(poll: Poller, left: dict[str, list[NewJob]]) -> list[NewJob]:
    """Out of `left`, where the first of each type stands last."""
    taken: list[NewJob] = []
    while left and len(taken) < min(poll.takes_handed, MAX_SCANNED):
        kinds = left if poll.job_types is None else poll.job_types & left.keys()
        if not kinds:
            break
        kind = min(kinds, key=lambda kind: _in_order(left[kind][-1]))
        taken.append(left[kind].pop())
        if not left[kind]:
            del left[kind]
    return taken
