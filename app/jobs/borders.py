"""Whether what a path names is in a queue that the caller reaches: a foreign job is no job, a foreign queue is forbidden."""

from collections.abc import Mapping
from contextlib import suppress
from uuid import UUID

from app.db.floor import Floor
from app.errors import NotFound
from app.jobs import store
from app.queues.registry import Queues
from app.web.access import Access


class Borders:
    def __init__(self, floor: Floor, queues: Queues) -> None:
        self._floor = floor
        self._queues = queues

    async def check(self, access: Access, path: str, named: Mapping[str, str]) -> None:
        if path.startswith("/queues/") and "name" in named:
            access.check(named["name"], "/path/name")
        if "job_id" in named:
            await self._check_job(access, named["job_id"], "dead letter" if path.startswith("/dead-letters/") else "job")

    async def _check_job(self, access: Access, text: str, word: str) -> None:
        """The answer is that for an id which nobody has, and takes a look at the database like that one."""
        with suppress(ValueError):  # what is no id is told by the route
            job_id = UUID(text)
            if job_id not in await self._queues.reached([job_id], access):
                await store.find(self._floor.db, job_id)
                raise NotFound(f"no {word} {job_id}")
