"""Waiting pollers: the long polls that are connected now, and how they are woken.

A waiting poller has no task of its own, no database connection and uses no CPU. Pollers are woken
first come, first served, one per job. The states of a `Poller`:

    claiming   runs claim statements
    asleep     waits for a wake-up
    woken      has been woken and claims next
    reserved   jobs are being stored as leased to it, so it takes no others

    claiming -> asleep     wait: the claim has found nothing
    claiming -> woken      notify, wake_up: kept, so `wait` returns immediately
    asleep   -> woken      notify, wake_up, or its time is up
    asleep   -> reserved   reserve (sync_match.py)
    reserved -> woken      deliver: the jobs are committed, `wait` returns them
    reserved -> asleep     deliver, without jobs: they were not stored
    reserved -> woken      the reservation has timed out, `wait` returns nothing
    woken    -> claiming   begin_claim

A poller leaves the registry from any state. The wake-ups that it has not consumed go to other
pollers.
"""

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import NamedTuple, TypeAlias
from uuid import UUID

from app.events import EventBus, JobsClaimable, JobsMoved, QueueReady, WorkerDirected
from app.jobs.rows import ClaimedRow, NewJob
from app.metrics import Metrics
from app.queues.cache import QueueCache

Reservation: TypeAlias = "asyncio.Future[Sequence[ClaimedRow]]"
JobTypeNames: TypeAlias = frozenset[str] | None

# Seconds. A commit that takes longer waits for a standby or a disk, and the poller need not.
RESERVATION_TIMEOUT = 2.0
MAX_MATCHED_JOBS = 32  # this many jobs of any size fit into one response

_sequence = itertools.count()


class WakeUp(NamedTuple):
    """A job of this queue and type has become claimable.

    Without a type: some jobs have become claimable, perhaps many, of any type.
    """

    queue: str
    job_type: str | None


class Poller:
    """One waiting claim.

    A wake-up that arrives during a claim is kept: the poller claims again, or passes it on.
    """

    def __init__(
        self,
        queues: Sequence[str],
        job_types: frozenset[str] | None,
        worker_id: str | None,
        lease_seconds: int | None = None,
        match_capacity: int = 0,
    ) -> None:
        self.queues = queues
        self.job_types = job_types
        self.worker_id = worker_id
        self.lease_seconds = lease_seconds
        self.match_capacity = match_capacity  # how many jobs a sync match may give it
        self.number = next(_sequence)
        self.is_woken = False
        self._sleep: asyncio.Future[None] | None = None
        self._reservation: Reservation | None = None
        self._new_wake_ups: set[WakeUp] = set()
        self._claimed_for: set[WakeUp] = set()

    @property
    def is_asleep(self) -> bool:
        return self._sleep is not None

    @property
    def is_available(self) -> bool:
        """Whether it can be notified of a job or matched with one.

        A poller with a reservation claims no other job.
        """
        return self._reservation is None and not self.is_woken

    @property
    def unconsumed(self) -> set[WakeUp]:
        """The wake-ups that other pollers should get when this one leaves."""
        return self._new_wake_ups | self._claimed_for

    def wake_up(self) -> None:
        """Wakes the poller without a job.

        The client disconnected, the broker drains, or the worker has a directive.
        """
        self.is_woken = True
        self._end_sleep()

    def notify(self, wake_up: WakeUp) -> None:
        self._new_wake_ups.add(wake_up)
        self.wake_up()

    def begin_claim(self) -> None:
        """The claim that begins now sees everything that happened before it."""
        self.is_woken = False
        self._claimed_for |= self._new_wake_ups
        self._new_wake_ups = set()

    def nothing_found(self) -> None:
        """Other pollers claimed the jobs first."""
        self._claimed_for = set()

    def claimed(self, jobs: set[WakeUp], *, claimed_all: bool) -> None:
        """Consumes the wake-ups of the claimed jobs.

        A wake-up without a type is consumed only if the claim has left no job behind.
        """
        queues = {job.queue for job in jobs}
        consumed = {
            wake_up
            for wake_up in self._claimed_for
            if wake_up in jobs or (claimed_all and not wake_up.job_type and wake_up.queue in queues)
        }
        self._claimed_for -= consumed

    def reserve(self) -> Reservation:
        """Jobs are being stored for this poller.

        However it wakes up, it first waits for the outcome, for a while.
        """
        self._reservation = asyncio.get_running_loop().create_future()
        return self._reservation

    def deliver(self, reservation: Reservation, rows: Sequence[ClaimedRow]) -> bool:
        """Ends a reservation with the jobs, or with none if they were not stored.

        Without jobs the poller sleeps on. Returns False if the poller no longer waits for them.
        """
        if reservation.done():
            return False
        reservation.set_result(rows)
        if rows:
            self.wake_up()
        elif self._reservation is reservation:
            self._reservation = None
        return True

    async def wait(self, seconds: float) -> Sequence[ClaimedRow]:
        """Sleeps until it is woken. Returns the jobs that were delivered to it in the meantime."""
        if not self.is_woken:
            await self._fall_asleep(seconds)
        reservation, self._reservation = self._reservation, None
        if reservation is None:
            return ()
        await asyncio.wait([reservation], timeout=RESERVATION_TIMEOUT)
        return reservation.result() if reservation.done() or not reservation.cancel() else ()

    async def _fall_asleep(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._sleep = loop.create_future()
        timer = loop.call_later(seconds, self._end_sleep)
        try:
            await self._sleep
        finally:
            timer.cancel()
            self._sleep = None

    def _end_sleep(self) -> None:
        if self._sleep is not None and not self._sleep.done():
            self._sleep.set_result(None)


class PollerRegistry:
    """The connected pollers, by queue name and accepted job types, in order of arrival.

    By name and not by id: a poller can wait for a queue that does not exist yet.
    """

    def __init__(self, *, events: EventBus, queues: QueueCache, metrics: Metrics) -> None:
        self._queues = queues
        self._pollers: dict[str, dict[JobTypeNames, dict[Poller, None]]] = {}
        self.draining = False
        self.parked = 0
        metrics.parked.set_function(lambda: self.parked)
        events.subscribe_moved(["ready"], self._on_ready)
        events.subscribe(JobsClaimable, self._on_jobs_claimable)
        events.subscribe(QueueReady, self._on_queue_ready)
        events.subscribe(WorkerDirected, self._on_worker_directed)

    def _on_ready(self, event: JobsMoved) -> None:
        if self._pollers:
            self.wake(self._queues.name(event.lane), [job.job_type for job in event.jobs])

    def _on_jobs_claimable(self, event: JobsClaimable) -> None:
        self.wake(self._queues.name(event.lane), [None] * event.count)

    def _on_queue_ready(self, event: QueueReady) -> None:
        """Wakes one poller: it claims, and wakes the next one if it could not claim all jobs.

        `ReadyPoller` handles a queue that is not in the cache yet.
        """
        name = None if event.queue_id is None else self._queues.name_of_id(event.queue_id)
        if name is not None:
            self.wake(name, [None])

    def _on_worker_directed(self, event: WorkerDirected) -> None:
        for poller in self.pollers():
            if poller.worker_id == event.worker_id:
                poller.wake_up()

    def add(self, poller: Poller) -> None:
        for queue in poller.queues:
            self._pollers.setdefault(queue, {}).setdefault(poller.job_types, {})[poller] = None
        self.parked += 1

    def remove(self, poller: Poller) -> None:
        for queue in poller.queues:
            by_types = self._pollers[queue]
            del by_types[poller.job_types][poller]
            if not by_types[poller.job_types]:
                del by_types[poller.job_types]
            if not by_types:
                del self._pollers[queue]
        self.parked -= 1
        for wake_up in poller.unconsumed:
            self.wake(wake_up.queue, [wake_up.job_type])

    def wake(self, queue: str, job_types: Iterable[str | None]) -> None:
        """Wakes one poller per job.

        A job of unknown type may suit any poller, so one poller of each set of types is woken. If
        only one poller were woken, it could be one that never accepts the job.
        """
        if queue not in self._pollers:
            return
        for job_type, count in Counter(job_types).items():
            by_types = self._pollers[queue]
            for candidates in [self._accepting(queue, {job_type})] if job_type else list(by_types.values()):
                for poller in islice(_longest_asleep_first(candidates), count):
                    poller.notify(WakeUp(queue, job_type))

    def match(self, queue: str, jobs: Iterable[NewJob]) -> list[tuple[Poller, list[NewJob]]]:
        """Pairs sleeping pollers with jobs, until either runs out.

        Each poller gets the first jobs that it accepts.
        """
        unmatched: dict[str, list[NewJob]] = {}
        for job in sorted(jobs, key=_claim_order, reverse=True):
            unmatched.setdefault(job.job_type, []).append(job)
        matches: list[tuple[Poller, list[NewJob]]] = []
        for poller in self._accepting(queue, unmatched.keys()):
            if not unmatched:
                break
            if poller.is_asleep and poller.is_available and (matched := _pop_jobs(poller, unmatched)):
                matches.append((poller, matched))
        return matches

    def _accepting(self, queue: str, job_types: Collection[str]) -> Iterable[Poller]:
        """The pollers that accept any of these types, in the order of their arrival.

        Skips pollers of other types without visiting them: there may be thousands.
        """
        by_types = self._pollers.get(queue, {})
        accepting = [pollers for types, pollers in by_types.items() if types is None or not types.isdisjoint(job_types)]
        return accepting[0] if len(accepting) == 1 else heapq.merge(*accepting, key=attrgetter("number"))

    def count(self, queue: str) -> int:
        return sum(map(len, self._pollers.get(queue, {}).values()))

    def has_poller_for(self, queue: str, job_type: str) -> bool:
        """Whether a poller waits that would accept a job of this type."""
        return any(types is None or job_type in types for types in self._pollers.get(queue, ()))

    def queues(self) -> list[str]:
        """The names of the queues that have pollers."""
        return list(self._pollers)

    def drain(self) -> None:
        self.draining = True
        for poller in self.pollers():
            poller.wake_up()

    def pollers(self) -> set[Poller]:
        return {poller for by_types in self._pollers.values() for pollers in by_types.values() for poller in pollers}


def _longest_asleep_first(pollers: Iterable[Poller]) -> Iterator[Poller]:
    """Sleeping pollers in the order of their arrival, then the pollers that are claiming now."""
    claiming = []
    for poller in pollers:
        if poller.is_available and poller.is_asleep:
            yield poller
        elif poller.is_available:
            claiming.append(poller)
    yield from claiming


def _claim_order(job: NewJob) -> tuple[int, UUID]:
    return -job.priority, job.id


def _pop_jobs(poller: Poller, unmatched: dict[str, list[NewJob]]) -> list[NewJob]:
    """Removes the jobs of this poller from `unmatched`.

    The first job of each type is the last in its list.
    """
    jobs: list[NewJob] = []
    while unmatched and len(jobs) < min(poller.match_capacity, MAX_MATCHED_JOBS):
        job_types = unmatched if poller.job_types is None else poller.job_types & unmatched.keys()
        if not job_types:
            break
        job_type = min(job_types, key=lambda job_type: _claim_order(unmatched[job_type][-1]))
        jobs.append(unmatched[job_type].pop())
        if not unmatched[job_type]:
            del unmatched[job_type]
    return jobs
