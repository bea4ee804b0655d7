"""In-process events about jobs, published after the commit.

    moved      jobs of a lane wait now: ready, pending or scheduled
    ready      jobs became claimable; also sent to the other processes by NOTIFY
    back       a claimable job has appeared at an id, so low-water marks must not skip it
    due        a scheduled job has a new due time
    left       the jobs of a group have changed, so admission must be decided again
    ended      a job that other jobs depend on has finished
    finished   jobs have finished, so requests that wait for their results can return

A lost event costs latency and never a job, because every subscriber also scans periodically.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol
from uuid import UUID

from app.db.lanes import queue_id_of
from app.db.notifier import Notifier

OnReady = Callable[[int | None, Iterable[str | None]], None]
OnDue = Callable[[datetime], None]
OnTurn = Callable[[int, Iterable[str | None]], None]
OnBack = Callable[[int, UUID | None], None]
OnFinished = Callable[[Iterable[UUID]], None]


class JobMove(Protocol):
    """A row with the new state of a job."""

    @property
    def state(self) -> str: ...

    @property
    def job_type(self) -> str: ...

    @property
    def group_key(self) -> str | None: ...

    @property
    def run_at(self) -> datetime | None: ...


class Move(NamedTuple):
    """The new state of a job, for callers whose row lacks one of these fields."""

    state: str
    job_type: str
    group_key: str | None
    run_at: datetime | None = None


class Signals:
    """Each event has one subscriber, which sets the attribute `on_...`:

    * ready: waiting pollers
    * back: low-water marks
    * due: the job scheduler
    * turn: the group scheduler
    * ended: the dependency resolver
    * finished: requests that wait for a result
    """

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self.on_ready: OnReady = lambda _queue, _types: None
        self.on_due: OnDue = lambda _instant: None
        self.on_turn: OnTurn = lambda _lane, _groups: None
        self.on_back: OnBack = lambda _lane, _since: None
        self.on_ended: Callable[[], None] = lambda: None
        self.on_finished: OnFinished = lambda _jobs: None
        # A notification of another process has only the queue. One poller claims, and wakes the
        # next one if there were more jobs than it could claim.
        notifier.subscribe(lambda topic: self.on_ready(topic, [None]))

    def moved(self, lane: int, moves: Sequence[JobMove], *, since: UUID | None = None) -> None:
        """Publishes jobs that wait now.

        Call it after the commit. `since`: no job has a smaller id.
        """
        ready = [move.job_type for move in moves if move.state == "ready"]
        pending = {move.group_key for move in moves if move.state == "pending"}
        if ready:
            self.back(lane, since)
            self.ready(lane, ready)
        if pending:
            self.left(lane, pending)
        for move in moves:
            if move.state == "scheduled" and move.run_at is not None:
                self.due(move.run_at)

    def ready(self, lane: int, job_types: Iterable[str | None]) -> None:
        """One entry per job that became claimable; None for a job of unknown type."""
        self.on_ready(queue_id_of(lane), job_types)
        self._notifier.announce(queue_id_of(lane))

    def back(self, lane: int, since: UUID | None) -> None:
        """A job became claimable or changed its priority, at this id or anywhere in the lane."""
        self.on_back(lane, since)

    def due(self, instant: datetime) -> None:
        self.on_due(instant)

    def left(self, lane: int, groups: Iterable[str | None]) -> None:
        """Jobs entered or left these groups, so other jobs may be admitted."""
        self.on_turn(lane, groups)

    def ended(self) -> None:
        """A job that other jobs depend on has finished."""
        self.on_ended()

    def finished(self, job_ids: Iterable[UUID]) -> None:
        self.on_finished(job_ids)
