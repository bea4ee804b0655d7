"""Checks that the caller may access the job or queue that the path of a request names.

a queue that the key may not access -> 403
a job in such a queue               -> 404, as for an id that does not exist
"""

from collections.abc import Mapping
from contextlib import suppress
from uuid import UUID

from app.db.infrastructure import Infrastructure
from app.db.lanes import lane_of
from app.errors import Forbidden, NotFound
from app.http.authorization import Access
from app.jobs import store
from app.queues.cache import QueueCache

# First segments of paths whose routes check `access` themselves, or whose resources belong to no
# queue. On other paths with parameters, a key without access to all queues gets 403, unless the
# parameter names a queue or a job. So a new route is forbidden to such keys until it is added here.
SELF_CHECKED = ("schedules", "job-types")


class PathAccess:
    def __init__(self, *, infra: Infrastructure, queues: QueueCache) -> None:
        self._infra = infra
        self._queues = queues

    async def check(self, access: Access, path: str, path_params: Mapping[str, str]) -> None:
        package = path.split("/")[1]
        if package == "queues" and "name" in path_params:
            access.check(path_params["name"], "/path/name")
        elif "job_id" in path_params:
            await self._check_job(access, path_params["job_id"], "dead letter" if package == "dead-letters" else "job")
        elif path_params and package not in SELF_CHECKED:
            raise Forbidden("this call requires a key with access to every queue")

    async def _check_job(self, access: Access, text: str, noun: str) -> None:
        """Raises NotFound, as for an unknown id, if the caller may not access the queue of the job.

        Before it raises, searches the database for an id that does not exist. Without this search
        the response would come sooner than for an unknown id, and would reveal that the job exists.
        """
        job_id = _parse_id(text)
        if job_id is not None and job_id not in await self._queues.accessible_ids([job_id], access):
            unknown_id = self._infra.job_ids.generate(lane_of(job_id), self._infra.now())
            await store.find(self._infra.db, unknown_id, self._infra.retention_now())
            raise NotFound(f"no {noun} {job_id}")


def _parse_id(text: str) -> UUID | None:
    """Returns the id, or None if the text is not an id. The route then reports the error."""
    with suppress(ValueError):
        return UUID(text)
    return None
