"""The event bus, by which the services of one process react to each other. An event says what has
happened, and is published after the commit.

    event            published by                           subscribers
    JobsMoved        enqueues, every transition of jobs     `grep -rn "subscribe_moved("` lists them
    JobsClaimable    lease ender, rule changes              pollers, notifier
    QueueReady       notifier, rate limits, rule changes    pollers, ready poller
    JobsPurged       purge                                  group scheduler, dependency resolver
    ConfigNotified   notifier                               configuration versions
    WorkerDirected   worker registry                        pollers
    LeasesAbandoned  sync match, long poll                  lease returner

Handlers are synchronous, and must neither block nor raise: a handler wakes a service, starts a
timer or adds to a set. A lost event costs latency, never a job, because every subscriber also scans
periodically.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeVar
from uuid import UUID

E = TypeVar("E")

FINISHED = ("completed", "dead", "cancelled")


class MovedJob(Protocol):
    """A job that has reached a new state. A new job counts, too: it has reached its first state.

    has_dependents   whether other jobs depend on this job
    admission        the number of the job's admission; for a job whose lease has ended, the number
                     during the lease
    """

    @property
    def id(self) -> UUID: ...

    @property
    def state(self) -> str: ...

    @property
    def job_type(self) -> str: ...

    @property
    def group_key(self) -> str | None: ...

    @property
    def run_at(self) -> datetime | None: ...

    @property
    def has_dependents(self) -> bool | None: ...

    @property
    def admission(self) -> int | None: ...


class MovedJobRow(NamedTuple):
    """The row that a statement returns for each job that it has moved to a new state.

    A statement may return more columns after these.
    """

    id: UUID
    state: str
    job_type: str
    group_key: str | None
    run_at: datetime | None
    has_dependents: bool | None
    admission: int | None


class JobsMoved(NamedTuple):
    """Jobs of one lane have reached the same new state. New jobs count, too."""

    lane: int
    state: str
    jobs: Sequence[MovedJob]


@dataclass(frozen=True, slots=True)
class JobsClaimable:
    """At most `count` jobs of this lane, of any type, may have become claimable: leases that count
    against `max_running` have ended, or a rule has changed."""

    lane: int
    count: int


@dataclass(frozen=True, slots=True)
class QueueReady:
    """Jobs of this queue, of any type, may be claimable.

    If `queue_id` is None, notifications may have been lost: subscribers check every queue.
    """

    queue_id: int | None


@dataclass(frozen=True, slots=True)
class JobsPurged:
    """Waiting jobs of one lane were removed. Other jobs may have depended on them."""

    lane: int


@dataclass(frozen=True, slots=True)
class ConfigNotified:
    """Another process has changed the configuration, or may have done so while notifications were
    lost."""


@dataclass(frozen=True, slots=True)
class WorkerDirected:
    """The directive of this worker has changed."""

    worker_id: str


class AbandonedLease(Protocol):
    """A lease that may be stored in the database, although no worker has received it.
    `lease_seconds` is the length of the lease."""

    @property
    def id(self) -> UUID: ...

    @property
    def lease_token(self) -> UUID: ...

    @property
    def lease_seconds(self) -> float: ...


@dataclass(frozen=True, slots=True)
class LeasesAbandoned:
    """Leases that may be stored in the database, although no worker has received them."""

    leases: Sequence[AbandonedLease]


class EventBus:
    """Calls the handlers that have subscribed to an event, in the order of their subscriptions."""

    def __init__(self) -> None:
        self._handlers: dict[type, list[Callable[[Any], None]]] = defaultdict(list)
        self._moved_handlers: dict[str, list[Callable[[JobsMoved], None]]] = defaultdict(list)

    def subscribe(self, event: type[E], handler: Callable[[E], None]) -> None:
        self._handlers[event].append(handler)

    def subscribe_moved(self, states: Iterable[str], handler: Callable[[JobsMoved], None]) -> None:
        """Subscribes the handler to JobsMoved, for jobs that have reached one of these states."""
        for state in states:
            self._moved_handlers[state].append(handler)

    def publish(self, event: object) -> None:
        for handler in self._handlers[type(event)]:
            handler(event)

    def publish_moved(self, lane: int, jobs: Sequence[MovedJob]) -> None:
        """Publishes one JobsMoved for each state that these jobs have reached.

        The jobs have one lane. They may be new: then this is their first state.
        """
        by_state: dict[str, list[MovedJob]] = {}
        for job in jobs:
            by_state.setdefault(job.state, []).append(job)
        for state, moved in by_state.items():
            self.publish_moved_to(state, lane, moved)

    def publish_moved_to(self, state: str, lane: int, jobs: Sequence[MovedJob]) -> None:
        """Like `publish_moved`, for jobs that have all reached `state`."""
        event = JobsMoved(lane, state, jobs)
        for handler in self._moved_handlers[state]:
            handler(event)
