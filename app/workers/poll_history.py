"""Which queues and job types have been polled lately.

Kept in memory and written to the database every second. With it `explain` can tell that no worker
polls for a job.
"""

from collections.abc import Sequence

from app.db.infrastructure import Infrastructure
from app.queues.cache import QueueCache
from app.workers import store
from app.workers.store import PolledType

ANY_TYPE = ""
MAX_ENTRIES = 10_000  # per write


class PollHistory:
    def __init__(self, *, infra: Infrastructure, queues: QueueCache) -> None:
        self._infra = infra
        self._queues = queues
        self._unwritten: set[PolledType] = set()

    def record(self, queues: Sequence[str], job_types: Sequence[str] | None) -> None:
        """Records a poll. Skips queues that do not exist and entries beyond MAX_ENTRIES.

        A worker may poll for any name it likes.
        """
        for queue in queues:
            for job_type in job_types or (ANY_TYPE,):
                poll = PolledType(queue, job_type)
                if poll not in self._unwritten and len(self._unwritten) < MAX_ENTRIES and self._queues.exists(queue):
                    self._unwritten.add(poll)

    async def write(self) -> None:
        polls, self._unwritten = self._unwritten, set()
        if not polls:
            return
        try:
            await store.record_polls(self._infra.db, sorted(polls), self._infra.now())
        except Exception:
            self._unwritten |= polls
            raise
