"""What happens to jobs, told to whoever waits for it in this process; `ready` is passed on to the other processes too."""

from collections.abc import Callable, Iterable
from datetime import datetime
from uuid import UUID

from app.db.lanes import queue_id_of
from app.db.wakeups import Wakeups

OnReady = Callable[[int | None, Iterable[str | None]], None]
OnDue = Callable[[datetime], None]
OnFinished = Callable[[UUID], None]


class Signals:
    """Each kind has one listener, set by the room that waits: polls for ready, the promoter for due, watchers for finished."""

    def __init__(self, wakeups: Wakeups) -> None:
        self._wakeups = wakeups
        self.on_ready: OnReady = lambda _queue, _types: None
        self.on_due: OnDue = lambda _instant: None
        self.on_finished: OnFinished = lambda _job: None
        # Another process says only which queue: one poll looks, and passes the word on if it found more than it could take.
        wakeups.listen(lambda topic: self.on_ready(topic, [None]))

    def ready(self, lane: int, job_types: Iterable[str | None]) -> None:
        """One entry per job that became claimable; None for a job of unknown type."""
        self.on_ready(queue_id_of(lane), job_types)
        self._wakeups.announce(queue_id_of(lane))

    def due(self, instant: datetime) -> None:
        self.on_due(instant)

    def finished(self, job_ids: Iterable[UUID]) -> None:
        for job_id in job_ids:
            self.on_finished(job_id)
