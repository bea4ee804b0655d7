"""What happens to jobs, told to whoever waits for it in this process; `ready` is passed on to the other processes too."""

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
    """A row that says where a job has come to."""

    @property
    def state(self) -> str: ...

    @property
    def job_type(self) -> str: ...

    @property
    def group_key(self) -> str | None: ...

    @property
    def run_at(self) -> datetime | None: ...


class Move(NamedTuple):
    """Where a job has come to, of which no row tells all."""

    state: str
    job_type: str
    group_key: str | None
    run_at: datetime | None = None


class Signals:
    """Each kind has one listener, set by the room that waits: polls for ready, floors for what may lie below them, the promoter for due,
    turns for groups in which something has moved, releasing for jobs that others wait for, watchers for finished."""

    def __init__(self, wakeups: Notifier) -> None:
        self._wakeups = wakeups
        self.on_ready: OnReady = lambda _queue, _types: None
        self.on_due: OnDue = lambda _instant: None
        self.on_turn: OnTurn = lambda _lane, _groups: None
        self.on_back: OnBack = lambda _lane, _since: None
        self.on_ended: Callable[[], None] = lambda: None
        self.on_finished: OnFinished = lambda _jobs: None
        # Another process says only which queue: one poll looks, and passes the word on if it found more than it could take.
        wakeups.listen(lambda topic: self.on_ready(topic, [None]))

    def moved(self, lane: int, moves: Sequence[JobMove], *, since: UUID | None = None) -> None:
        """After the commit, for jobs that wait now. `since`: none of them has a smaller id."""
        ready = [move.job_type for move in moves if move.state == "ready"]
        parked = {move.group_key for move in moves if move.state == "parked"}
        if ready:
            self.back(lane, since)
            self.ready(lane, ready)
        if parked:
            self.left(lane, parked)
        for move in moves:
            if move.state == "scheduled" and move.run_at is not None:
                self.due(move.run_at)

    def ready(self, lane: int, job_types: Iterable[str | None]) -> None:
        """One entry per job that became claimable; None for a job of unknown type."""
        self.on_ready(queue_id_of(lane), job_types)
        self._wakeups.announce(queue_id_of(lane))

    def back(self, lane: int, since: UUID | None) -> None:
        """Something is claimable that was not, or was in another place: from this id on, or anywhere in the lane."""
        self.on_back(lane, since)

    def due(self, instant: datetime) -> None:
        self.on_due(instant)

    def left(self, lane: int, groups: Iterable[str | None]) -> None:
        """Somebody came to these groups or left them: whose turn is it?"""
        self.on_turn(lane, groups)

    def ended(self) -> None:
        """A job that others wait for."""
        self.on_ended()

    def finished(self, job_ids: Iterable[UUID]) -> None:
        self.on_finished(job_ids)
