"""Which queues and types workers ask for: in memory, written down every beat. With it `explain` can say that nobody asks."""

from collections.abc import Sequence

from app.db.infrastructure import Infrastructure
from app.queues.cache import QueueCache
from app.workers import store

ANY_TYPE = ""
MAX_ENTRIES = 10_000  # in one beat


class PollHistory:
    def __init__(self, infra: Infrastructure, queues: QueueCache) -> None:
        self._infra = infra
        self._queues = queues
        self._new: set[tuple[str, str]] = set()

    def note(self, queues: Sequence[str], job_types: Sequence[str] | None) -> None:
        """Only of queues that exist, and not without end: anybody may ask for anything."""
        for queue in queues:
            for job_type in job_types or (ANY_TYPE,):
                params = queue, job_type
                if params not in self._new and len(self._new) < MAX_ENTRIES and self._queues.exists(queue):
                    self._new.add(params)

    async def write(self) -> None:
        new, self._new = self._new, set()
        if not new:
            return
        try:
            await store.record_polls(self._infra.db, sorted(new), self._infra.now())
        except Exception:
            self._new |= new
            raise
