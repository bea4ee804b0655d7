"""The cache of queues in this process: by name for callers, by number for lanes."""

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
    """The cache of this process has no such queue. `QueueCreator` creates it if that is allowed."""


class Queue:
    """A queue as the process caches it: with the number and the lanes that nobody outside sees, and what its rules come to."""

    def __init__(self, row: QueueRow, *, is_draft: bool = False) -> None:
        config = row.rules()
        self.row = row
        self.is_draft = is_draft  # not stored yet: see `QueueCreator`
        self.config = config
        self.id = row.id
        self.name = row.name
        self.lanes = row.lanes
        self.paused = row.paused_at is not None
        self.deleted = row.deleted_at is not None
        self.max_running: int | None = value_or(config.max_running, None)
        self.rate: RateLimit | None = value_or(config.rate, None)
        self.per_group: int | None = value_or(config.max_running_per_group, None)
        self.fair = value_or(config.fair, False)
        self.max_waiting: int | None = value_or(config.max_waiting, None)

    @property
    def is_limited(self) -> bool:
        """Whether a claim has to ask at the gate."""
        return self.max_running is not None or self.rate is not None

    @property
    def admits_groups(self) -> bool:
        """Whether jobs become claimable one by one, when it is their turn (app/limits)."""
        return self.fair or self.per_group is not None

    @property
    def all_lanes(self) -> range:
        return lanes_of(self.id, self.lanes)


class QueueCache:
    def __init__(self, infra: Infrastructure) -> None:
        self._infra = infra
        self._by_name: dict[str, Queue] = {}
        self._by_id: dict[int, Queue] = {}
        self._reading = asyncio.Lock()  # or a slow read would put back what was in force before a newer one
        self.resting: dict[int, list[str]] = {}  # groups that cool down, by lane; kept fresh by app/limits
        infra.versions.hear("policies", self.refresh)

    async def refresh(self) -> None:
        async with self._reading:
            self._cache(await store.all_queues(self._infra.db))

    def _cache(self, rows: Iterable[QueueRow]) -> None:
        known = self._by_id
        queues = [known[row.id] if row.id in known and known[row.id].row == row else Queue(row) for row in rows]
        self._by_name = {queue.name: queue for queue in queues}
        self._by_id = {queue.id: queue for queue in queues}

    def known(self) -> list[Queue]:
        """Without those that were deleted."""
        return [queue for queue in self._by_name.values() if not queue.deleted]

    def everything(self) -> Iterable[Queue]:
        """Deleted ones too: another process may have put a job into one a moment ago."""
        return self._by_name.values()

    def lanes(self, names: Container[str] | None = None, access: Access = FULL_ACCESS) -> list[int]:
        """The lanes of these queues, or of all; of those that the caller reaches."""
        queues = (queue for queue in self.everything() if names is None or queue.name in names)
        return [lane for queue in queues if access.allows(queue.name) for lane in queue.all_lanes]

    def name_of_id(self, queue_id: int) -> str | None:
        queue = self._by_id.get(queue_id)
        return queue.name if queue else None

    def exists(self, name: str) -> bool:
        """As far as this process knows."""
        return name in self._by_name

    def existing(self, name: str) -> Queue:
        queue = self._by_name.get(name)
        if queue is None or queue.deleted:
            raise MissingQueue(name)
        return queue

    async def find(self, name: str) -> Queue | None:
        """Asks the database only for a name that is not cached: another process may have made it."""
        if name not in self._by_name:
            await self.refresh()
        return self._by_name.get(name)

    async def find_all(self, names: Sequence[str]) -> list[Queue]:
        """Those that exist, in the order of the names; asks the database at most once."""
        if any(name not in self._by_name for name in names):
            await self.refresh()
        return [self._by_name[name] for name in names if name in self._by_name]

    async def get(self, name: str) -> Queue:
        queue = await self.find(name)
        if queue is None or queue.deleted:
            raise NotFound(f"no queue named {name}")
        return queue

    async def name_of(self, lane: int) -> str:
        """A lane can come from a job that another process put into a queue which this one has not heard of yet."""
        await self.load({lane})
        queue = self._by_id.get(queue_id_of(lane))
        return queue.name if queue else f"queue-{queue_id_of(lane)}"

    async def visible_to(self, ids: Iterable[UUID], access: Access) -> set[UUID]:
        """Those whose queues the caller reaches. An id that was made up belongs to no queue."""
        params = set(ids)
        if access.everything:
            return params
        await self.load({lane_of(job_id) for job_id in params})
        return {job_id for job_id in params if access.allows(self.name_of_id(queue_id_of(lane_of(job_id))) or "")}

    async def load(self, lanes: Iterable[int]) -> None:
        """After this, `of_lane` and `name` know these lanes."""
        if any(queue_id_of(lane) not in self._by_id for lane in lanes):
            await self.refresh()

    async def has_lane(self, lane: int) -> bool:
        """Whether there is such a lane: an id can be made up."""
        await self.load([lane])
        return queue_id_of(lane) in self._by_id

    def by_lane(self, lane: int) -> Queue:
        return self._by_id[queue_id_of(lane)]

    def held_groups(self, lane: int) -> list[str] | None:
        """The groups of this lane whose jobs wait for their turn, as statements take them (jobs.sql)."""
        queue, resting = self._by_id.get(queue_id_of(lane)), self.resting.get(lane)
        if queue is None or not queue.admits_groups:
            return resting or None
        return ["*", *([""] if queue.fair else []), *(resting or [])]

    def counts_leases(self, lane: int) -> bool:
        queue = self._by_id.get(queue_id_of(lane))
        return queue is not None and queue.max_running is not None

    def needs_admission(self, lane: int, group: str | None) -> bool:
        held_groups = self.held_groups(lane)
        return held_groups is not None and ((group or "") in held_groups or (group is not None and "*" in held_groups))

    def name(self, lane: int) -> str:
        return self.by_lane(lane).name

    def retention(self, lane: int, now: datetime) -> tuple[datetime, bool]:
        """Until when a job that finishes now is kept, and whether it goes to an archive afterwards."""
        settings = self._infra.settings
        queue = self._by_id.get(queue_id_of(lane))
        own = value_or(queue.config.retention, Retention()) if queue else Retention()
        mode = value_or(own.mode, RetentionMode(settings.finished_mode))
        return now + timedelta(
            seconds=value_or(own.finished_seconds, settings.finished_seconds)
        ), mode is RetentionMode.DETACH
