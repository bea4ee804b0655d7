"""Keeps the pollers of all open claim requests, wakes them, and matches them with new jobs.

Each job wakes one poller: the first to arrive of those that sleep, or else of those that claim. A
job of unknown type wakes one poller for each set of accepted types.
"""

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from operator import attrgetter
from typing import TypeAlias
from uuid import UUID

from app.events import EventBus, JobsClaimable, JobsMoved, QueueReady, WorkerDirected
from app.jobs.rows import NewJob
from app.matching.poller import Poller, WakeUp
from app.metrics import Metrics
from app.queues.cache import QueueCache

AcceptedTypes: TypeAlias = frozenset[str] | None  # None: any type

MAX_MATCHED_JOBS = 32  # jobs in one sync match: 32 jobs of any size fit into one response


class PollerRegistry:
    """Keeps pollers by queue name and accepted job types, in the order of arrival.

    The keys are queue names, not ids, because a poller can wait for a queue that does not exist
    yet.
    """

    def __init__(self, *, events: EventBus, queues: QueueCache, metrics: Metrics) -> None:
        self._queues = queues
        self._pollers: dict[str, dict[AcceptedTypes, dict[Poller, None]]] = {}
        self.draining = False
        self.open_claims = 0  # claim requests with a poller here, whether they claim or wait
        metrics.parked.set_function(lambda: self.open_claims)
        events.subscribe_moved(["ready"], self._on_ready)
        events.subscribe(JobsClaimable, self._on_jobs_claimable)
        events.subscribe(QueueReady, self._on_queue_ready)
        events.subscribe(WorkerDirected, self._on_worker_directed)

    def _on_ready(self, event: JobsMoved) -> None:
        if self._pollers:
            self.wake(self._queues.name_by_lane(event.lane), (job.job_type for job in event.jobs))

    def _on_jobs_claimable(self, event: JobsClaimable) -> None:
        self.wake(self._queues.name_by_lane(event.lane), [None] * event.count)

    def _on_queue_ready(self, event: QueueReady) -> None:
        """Wakes pollers of the queue: one for each set of accepted job types.

        If a woken poller leaves jobs behind, its wake-up goes to another poller. `ReadyPoller`
        handles the event if the queue is not cached, or if the event is for all queues.
        """
        name = None if event.queue_id is None else self._queues.name_by_id(event.queue_id)
        if name is not None:
            self.wake(name, [None])

    def _on_worker_directed(self, event: WorkerDirected) -> None:
        for poller in self.pollers():
            if poller.worker_id == event.worker_id:
                poller.wake()

    def add(self, poller: Poller) -> None:
        for queue in poller.queues:
            self._pollers.setdefault(queue, {}).setdefault(poller.job_types, {})[poller] = None
        self.open_claims += 1

    def remove(self, poller: Poller) -> None:
        for queue in poller.queues:
            by_types = self._pollers[queue]
            del by_types[poller.job_types][poller]
            if not by_types[poller.job_types]:
                del by_types[poller.job_types]
            if not by_types:
                del self._pollers[queue]
        self.open_claims -= 1
        for wake_up in poller.unconsumed:
            self.wake(wake_up.queue, [wake_up.job_type])

    def wake(self, queue: str, job_types: Iterable[str | None]) -> None:
        """Wakes one poller for each job. `job_types` has the type of each job, or None if unknown.

        For a job of unknown type, wakes one poller of each set of accepted types, because a single
        poller might not accept the job.
        """
        if queue not in self._pollers:
            return
        for job_type, count in Counter(job_types).items():
            by_types = self._pollers[queue]
            candidate_sets = [self._accepting(queue, {job_type})] if job_type else list(by_types.values())
            for candidates in candidate_sets:
                for poller in islice(_asleep_first(candidates), count):
                    poller.notify(WakeUp(queue, job_type))

    def match(self, queue: str, jobs: Iterable[NewJob]) -> list[tuple[Poller, list[NewJob]]]:
        """Matches sleeping pollers with new jobs, until no jobs or no pollers are left.

        Each poller gets the first jobs that it accepts, in claim order.
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
        """Returns the pollers that accept any of these types, in the order of arrival.

        Does not visit pollers that accept only other types: there may be thousands of them.
        """
        by_types = self._pollers.get(queue, {})
        accepting = [pollers for types, pollers in by_types.items() if types is None or not types.isdisjoint(job_types)]
        return accepting[0] if len(accepting) == 1 else heapq.merge(*accepting, key=attrgetter("arrival"))

    def count(self, queue: str) -> int:
        """Counts the pollers of the queue."""
        return sum(map(len, self._pollers.get(queue, {}).values()))

    def has_poller_for(self, queue: str, job_type: str) -> bool:
        """Whether a poller of this queue accepts jobs of this type."""
        return any(types is None or job_type in types for types in self._pollers.get(queue, ()))

    def polled_queues(self) -> list[str]:
        """Returns the names of the queues that have pollers."""
        return list(self._pollers)

    def drain(self) -> None:
        """Wakes all pollers, so that their requests end. The broker refuses all later claims."""
        self.draining = True
        for poller in self.pollers():
            poller.wake()

    def pollers(self) -> set[Poller]:
        return {poller for by_types in self._pollers.values() for pollers in by_types.values() for poller in pollers}


def _asleep_first(pollers: Iterable[Poller]) -> Iterator[Poller]:
    """Yields the sleeping pollers in the order of arrival, then the pollers that are claiming."""
    claiming = []
    for poller in pollers:
        if poller.is_available and poller.is_asleep:
            yield poller
        elif poller.is_available:
            claiming.append(poller)
    yield from claiming


def _claim_order(job: NewJob) -> tuple[int, UUID]:
    """Returns the sort key of a job in claim order: highest priority first, then oldest first."""
    return -job.priority, job.id


def _pop_jobs(poller: Poller, unmatched: dict[str, list[NewJob]]) -> list[NewJob]:
    """Removes from `unmatched` the first jobs that this poller accepts, and returns them.

    `unmatched` has the jobs of each type in reverse order: the first job is the last in its list.
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
