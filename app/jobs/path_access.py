"""Whether what a path names is in a queue that the caller reaches: a foreign job is no job, a foreign queue is forbidden."""

from collections.abc import Mapping
from contextlib import suppress
from uuid import UUID

from app.db.infrastructure import Infrastructure
from app.db.lanes import lane_of
from app.errors import Forbidden, NotFound
from app.http.authorization import Access
from app.jobs import store
from app.queues.cache import QueueCache

# Rooms that look at `access` themselves, or whose things belong to no queue. What a new route names is nobody's until it says whose.
SELF_CHECKED = ("schedules", "job-types")


class PathAccess:
    def __init__(self, infra: Infrastructure, queues: QueueCache) -> None:
        self._infra = infra
        self._queues = queues

    async def check(self, access: Access, path: str, named: Mapping[str, str]) -> None:
        room = path.split("/")[1]
        if room == "queues" and "name" in named:
            access.check(named["name"], "/path/name")
        elif "job_id" in named:
            await self._check_job(access, named["job_id"], "dead letter" if room == "dead-letters" else "job")
        elif named and room not in SELF_CHECKED:
            raise Forbidden("this call is for keys that reach every queue")

    async def _check_job(self, access: Access, text: str, word: str) -> None:
        """The answer is that for an id which nobody has, after looking for one: where it stops looking would tell what there is."""
        job_id = _id(text)
        if job_id is not None and job_id not in await self._queues.visible_to([job_id], access):
            await store.find(self._infra.db, self._infra.job_ids(lane_of(job_id)), self._infra.retention_now())
            raise NotFound(f"no {word} {job_id}")


def _id(text: str) -> UUID | None:
    """What is no id is told by the route."""
    with suppress(ValueError):
        return UUID(text)
    return None
