"""Which queues and job types have been polled lately.

Kept in memory and written to the database every second. With it `explain` can tell that no worker
polls for a job. The history of each API key is bounded: a worker may poll for any name it likes.
"""

import asyncio
from collections.abc import Sequence

from app.db.infrastructure import Infrastructure
from app.workers import store
from app.workers.listed_ids import ListedIds
from app.workers.store import PolledType

ANY_TYPE = ""
MAX_ENTRIES = 10_000  # per write


class PollHistory:
    def __init__(self, *, infra: Infrastructure) -> None:
        self._infra = infra
        self._unwritten: set[PolledType] = set()
        self._listed = ListedIds[PolledType](infra.settings.max_polled_types_per_key)
        self._write_lock = asyncio.Lock()

    def record(self, queues: Sequence[str], job_types: Sequence[str] | None, key_name: str) -> None:
        """Records that a poll accepts jobs of these types, or of all types, from these queues.

        Skips entries beyond MAX_ENTRIES or beyond the limit of the key.
        """
        for queue in queues:
            for job_type in job_types or (ANY_TYPE,):
                poll = PolledType(queue, job_type)
                if poll in self._unwritten or len(self._unwritten) >= MAX_ENTRIES:
                    continue
                if self._listed.try_add(poll, key_name):
                    self._unwritten.add(poll)
                else:
                    self._infra.metrics.polls_not_recorded.inc()

    async def write(self) -> None:
        """Writes the polls that were recorded before the call.

        Waits for a write that is running: it may be writing these polls, and the caller is about to
        read them.
        """
        async with self._write_lock:
            polls, self._unwritten = self._unwritten, set()
            if not polls:
                return
            try:
                await store.record_polls(self._infra.db, sorted(polls), self._infra.now(), self._listed.max_rows)
            except Exception:
                self._unwritten |= polls
                raise
