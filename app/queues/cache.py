"""The queues as this process caches them: by name for callers, by id for lanes."""

import asyncio
from collections.abc import Container, Iterable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from app.db.infrastructure import Infrastructure
from app.db.lanes import lane_of, lanes_of, queue_id_of
from app.errors import NotFound
from app.http.authorization import FULL_ACCESS, Access
from app.http.schema_types import value_or
from app.queues import store
from app.queues.schemas import RateLimit, Retention, RetentionMode
from app.queues.store import QueueRow


class MissingQueue(Exception):
    """The cache of this process has no such queue.

    `QueueCreator` creates it if the settings allow that.
    """


class Queue:
    """A queue in the cache of this process: its row, its decoded configuration, and its internal id
    and lanes.
    """

    def __init__(self, row: QueueRow, *, is_draft: bool = False) -> None:
        config = row.read_config()
        self.row = row
        self.is_draft = is_draft  # not inserted yet: see `QueueCreator`
        self.config = config
        self.id = row.id
        self.name = row.name
        self.lanes = row.lanes
        self.paused = row.paused_at is not None
        self.deleted = row.deleted_at is not None
        self.max_running: int | None = value_or(config.max_running, None)
        self.rate: RateLimit | None = value_or(config.rate, None)
        self.max_running_per_group: int | None = value_or(config.max_running_per_group, None)
        self.fair = value_or(config.fair, False)
        self.max_waiting: int | None = value_or(config.max_waiting, None)

    @property
    def is_limited(self) -> bool:
        """Whether claims of this queue must acquire an allowance from `QueueLimits`."""
        return self.max_running is not None or self.rate is not None

    @property
    def admits_groups(self) -> bool:
        """Whether jobs wait for admission by the group scheduler before they can be claimed
        (app/concurrency).
        """
        return self.fair or self.max_running_per_group is not None

    @property
    def all_lanes(self) -> range:
        return lanes_of(self.id, self.lanes)


class QueueCache:
    """All queues, reloaded whenever the configuration version `policies` changes."""

    def __init__(self, *, infra: Infrastructure) -> None:
        self._infra = infra
        self._by_name: dict[str, Queue] = {}
        self._by_id: dict[int, Queue] = {}
        # Otherwise a slow read could overwrite the result of a newer one.
        self._refresh_lock = asyncio.Lock()
        self.cooling_groups: dict[int, list[str]] = {}  # by lane
        infra.config_versions.subscribe("policies", self.refresh)

    async def refresh(self) -> None:
        async with self._refresh_lock:
            self._cache(await store.all_queues(self._infra.db))

    def set_cooling_groups(self, cooling_groups: dict[int, list[str]]) -> None:
        """The group scheduler keeps them fresh: a change of the configuration does not."""
        self.cooling_groups = cooling_groups

    def _cache(self, rows: Iterable[QueueRow]) -> None:
        cached = self._by_id
        queues = [cached[row.id] if row.id in cached and cached[row.id].row == row else Queue(row) for row in rows]
        self._by_name = {queue.name: queue for queue in queues}
        self._by_id = {queue.id: queue for queue in queues}

    def all(self) -> list[Queue]:
        """All queues that are not deleted."""
        return [queue for queue in self._by_name.values() if not queue.deleted]

    def all_including_deleted(self) -> Iterable[Queue]:
        """All queues, including deleted ones: another process may have enqueued into one a moment
        ago.
        """
        return self._by_name.values()

    def lanes(self, names: Container[str] | None = None, access: Access = FULL_ACCESS) -> list[int]:
        """The lanes of these queues, or of all queues, as far as the caller may access them."""
        queues = (queue for queue in self.all_including_deleted() if names is None or queue.name in names)
        return [lane for queue in queues if access.allows(queue.name) for lane in queue.all_lanes]

    def name_of_id(self, queue_id: int) -> str | None:
        queue = self._by_id.get(queue_id)
        return queue.name if queue else None

    def exists(self, name: str) -> bool:
        """Whether the cache has a queue of this name."""
        return name in self._by_name

    def cached(self, name: str) -> Queue | None:
        """Returns the queue from the cache. None: it is not there, or it is deleted."""
        queue = self._by_name.get(name)
        return None if queue is None or queue.deleted else queue

    def require(self, name: str) -> Queue:
        """Returns the queue from the cache, or raises MissingQueue."""
        queue = self.cached(name)
        if queue is None:
            raise MissingQueue(name)
        return queue

    async def find(self, name: str) -> Queue | None:
        """Finds a queue.

        Reloads the cache only if it lacks the name: another process may have created the queue.
        """
        if name not in self._by_name:
            await self.refresh()
        return self._by_name.get(name)

    async def find_all(self, names: Sequence[str]) -> list[Queue]:
        """The queues that exist, in the order of the names. Reloads the cache at most once."""
        if any(name not in self._by_name for name in names):
            await self.refresh()
        return [self._by_name[name] for name in names if name in self._by_name]

    async def get(self, name: str) -> Queue:
        queue = await self.find(name)
        if queue is None or queue.deleted:
            raise NotFound(f"no queue named {name}")
        return queue

    async def name_of(self, lane: int) -> str:
        """The name of the queue of a lane.

        Another process may have created the queue since the last reload.
        """
        await self.load({lane})
        queue = self._by_id.get(queue_id_of(lane))
        return queue.name if queue else f"queue-{queue_id_of(lane)}"

    async def visible_to(self, ids: Iterable[UUID], access: Access) -> set[UUID]:
        """The ids of jobs in queues that the caller may access.

        An invented id belongs to no queue.
        """
        job_ids = set(ids)
        if access.all_queues:
            return job_ids
        await self.load({lane_of(job_id) for job_id in job_ids})
        return {job_id for job_id in job_ids if access.allows(self.name_of_id(queue_id_of(lane_of(job_id))) or "")}

    async def load(self, lanes: Iterable[int]) -> None:
        """Makes sure that `by_lane` and `name` find the queues of these lanes."""
        if any(queue_id_of(lane) not in self._by_id for lane in lanes):
            await self.refresh()

    async def has_lane(self, lane: int) -> bool:
        """Whether a queue has this lane.

        The lane comes from a job id, which a caller can invent.
        """
        await self.load([lane])
        return queue_id_of(lane) in self._by_id

    def by_lane(self, lane: int) -> Queue:
        return self._by_id[queue_id_of(lane)]

    def held_groups(self, lane: int) -> list[str] | None:
        """The groups of this lane whose jobs need admission, in the form that statements take
        (jobs.sql).

        `*` stands for every group, the empty text for jobs without a group. None: no group is held.
        """
        queue, cooling_groups = self._by_id.get(queue_id_of(lane)), self.cooling_groups.get(lane)
        if queue is None or not queue.admits_groups:
            return cooling_groups or None
        return ["*", *([""] if queue.fair else []), *(cooling_groups or [])]

    def counts_leases(self, lane: int) -> bool:
        queue = self._by_id.get(queue_id_of(lane))
        return queue is not None and queue.max_running is not None

    def needs_admission(self, lane: int, group: str | None) -> bool:
        held_groups = self.held_groups(lane)
        return held_groups is not None and ((group or "") in held_groups or (group is not None and "*" in held_groups))

    def name(self, lane: int) -> str:
        return self.by_lane(lane).name

    def retention(self, lane: int, now: datetime) -> tuple[datetime, bool]:
        """Until when a job that finishes now is kept, and whether it is detached for an archive
        afterwards.
        """
        settings = self._infra.settings
        queue = self._by_id.get(queue_id_of(lane))
        retention = value_or(queue.config.retention, Retention()) if queue else Retention()
        mode = value_or(retention.mode, RetentionMode(settings.finished_mode))
        seconds = value_or(retention.finished_seconds, settings.finished_seconds)
        return now + timedelta(seconds=seconds), mode is RetentionMode.DETACH
