"""The cache of queues in this process: by name for requests, by id for lanes.

    absent -> cached    a look-up reads the queue, or all queues are reloaded
    cached -> reloaded  the config version `policies` (of queues and job types) has changed, or this
                        process has created or undeleted the queue

An enqueue that creates a queue, over HTTP or SQL, does not change the version, so the cache may
lack an existing queue. The look-ups that must not miss it read the database if the name or id is
not cached, by one index probe. Rows of queues are never deleted.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from app.db.infrastructure import Infrastructure
from app.db.lanes import lane_index_of_group, lane_of, lanes_of, queue_id_of
from app.errors import NotFound
from app.http.authorization import FULL_ACCESS, Access
from app.http.schema_types import value_or
from app.queues import store
from app.queues.schemas import RateLimit, Retention, RetentionMode
from app.queues.store import QueueRow
from app.rng import rng
from app.slices import in_slices, map_in_slices

PAGE_SIZE = 250  # queues per statement: the driver decodes all rows of a statement without a pause


class MissingQueue(Exception):
    """The cache of this process does not contain the queue, or contains it as deleted.

    `QueueCreator` creates the queue if the settings allow that.
    """


class Queue:
    """A cached queue: its row, its decoded configuration, and values derived from both.

    The object is immutable. If the row changes, a new object replaces it.
    """

    def __init__(self, row: QueueRow, *, is_draft: bool = False) -> None:
        config = row.read_config()
        self.row = row
        self.is_draft = is_draft  # the row is not in the database yet, see `QueueCreator`
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
        self.all_lanes = lanes_of(row.id, row.lanes)
        # Whether claims from this queue must ask `QueueLimits` for an allowance.
        self.is_limited = self.max_running is not None or self.rate is not None
        # Whether leases use a concurrency slot. If they do not, the value is None and not False,
        # because NULL takes no space in the row of a job.
        self.uses_slot = True if self.max_running is not None else None
        # Whether every group is a held group: its jobs need an admission by the group scheduler
        # (app/concurrency) before they can be claimed.
        self.holds_all_groups = self.fair or self.max_running_per_group is not None

    def choose_lane(self, group: str | None) -> int:
        """Chooses the lane of a new job: the lane of its group, or a random lane if it has none."""
        if group is not None:
            return self.all_lanes[lane_index_of_group(group, self.row.group_lanes)]
        return self.all_lanes[rng.randrange(self.lanes) if self.lanes > 1 else 0]


class QueueCache:
    """Caches the queues that existed at the last `refresh`, and those looked up by name or lane
    since then.

    In this table, `reads` says whether the look-up reads the database for a queue that is not
    cached. The other columns say what the look-up returns or raises. Without a read, `missing`
    means not cached.

        look-up                          reads  deleted       missing
        get(name)                        yes    NotFound      NotFound
        find(name)                       yes    the queue     None
        find_all(names)                  yes    the queue     left out
        require(name)                    no     MissingQueue  MissingQueue
        find_cached(name)                no     None          None
        cached_including_deleted(names)  no     the queue     left out
        by_lane(lane)                    no     the queue     KeyError
        name_by_lane(lane)               no     the name      KeyError
        name_by_id(id)                   no     the name      None
        find_name(lane)                  yes    the name      `queue-` and the id
        has_lane(lane)                   yes    True          False

    Call `load_lanes` before a look-up by lane that does not read the database.
    """

    def __init__(self, *, infra: Infrastructure) -> None:
        self._infra = infra
        self._by_name: dict[str, Queue] = {}
        self._by_id: dict[int, Queue] = {}
        # Without this lock, a slow read could overwrite the result of a newer read.
        self._read_lock = asyncio.Lock()
        self.cooling_groups: dict[int, list[str]] = {}  # groups that are cooling down, by lane
        infra.config_versions.subscribe("policies", self.refresh)

    async def refresh(self) -> None:
        """Reloads all queues, page by page. Requests are served between two pages.

        Decoding 9,000 queues without a pause blocked the event loop for 8 to 20 ms. The cache is
        unchanged until the last page is read.
        """
        async with self._read_lock:
            by_name: dict[str, Queue] = {}
            by_id: dict[int, Queue] = {}
            async for rows in self._pages():
                for queue in await map_in_slices(self._queue_of, rows):
                    by_name[queue.name] = by_id[queue.id] = queue
            self._by_name, self._by_id = by_name, by_id

    async def _pages(self) -> AsyncIterator[list[QueueRow]]:
        after: int | None = 0
        while after is not None:
            rows = await store.queues_after(self._infra.db, after, PAGE_SIZE)
            yield rows
            after = rows[-1].id if len(rows) == PAGE_SIZE else None

    def _queue_of(self, row: QueueRow) -> Queue:
        """Returns the cached queue if its row is unchanged, otherwise a new one.

        Users of the cache compare queues by identity to notice a change.
        """
        cached = self._by_id.get(row.id)
        return cached if cached is not None and cached.row == row else Queue(row)

    async def load_all(self) -> None:
        """Reloads all queues if the database has one that is not cached."""
        if (await store.queue_totals(self._infra.db)).all != len(self._by_id):
            await self.refresh()

    async def reload_names(self, names: Sequence[str]) -> None:
        """Reloads the queues of these names. Skips names without a queue."""
        async with self._read_lock:
            self._add(await store.queues_named(self._infra.db, names))

    async def _load_names(self, names: Sequence[str]) -> None:
        """Loads the queues of these names, except those that are cached."""
        if any(name not in self._by_name for name in names):
            async with self._read_lock:
                if missing := [name for name in names if name not in self._by_name]:
                    self._add(await store.queues_named(self._infra.db, missing))

    async def load_lanes(self, lanes: Iterable[int]) -> None:
        """Loads the queues of these lanes, except those that are cached.

        Call this method before `by_lane` and `name_by_lane`, which do not read the database.
        """
        ids = {queue_id_of(lane) for lane in lanes}
        if not ids <= self._by_id.keys():
            async with self._read_lock:
                if missing := sorted(ids - self._by_id.keys()):
                    self._add(await store.queues_with_ids(self._infra.db, missing))

    def _add(self, rows: Iterable[QueueRow]) -> None:
        for queue in map(self._queue_of, rows):
            self._by_name[queue.name] = self._by_id[queue.id] = queue

    def set_cooling_groups(self, cooling_groups: dict[int, list[str]]) -> None:
        """Stores which groups are cooling down, for all lanes.

        Only the group scheduler calls this method. `refresh` does not read cool-downs.
        """
        self.cooling_groups = cooling_groups

    def all(self) -> list[Queue]:
        """Returns the cached queues that are not deleted."""
        return [queue for queue in self._by_name.values() if not queue.deleted]

    def all_including_deleted(self) -> Sequence[Queue]:
        """Returns all cached queues. A deleted queue may still get jobs, from a process that does not
        know of the deletion yet."""
        return list(self._by_name.values())

    async def all_lanes(self, access: Access = FULL_ACCESS) -> list[int]:
        """Returns the lanes of all cached queues that the caller may access, deleted or not."""
        queues = in_slices(self.all_including_deleted())
        return [lane async for queue in queues if access.allows(queue.name) for lane in queue.all_lanes]

    def name_by_id(self, queue_id: int) -> str | None:
        queue = self._by_id.get(queue_id)
        return queue.name if queue else None

    def find_cached(self, name: str) -> Queue | None:
        """Returns the queue from the cache, or None if it is not cached or is deleted."""
        queue = self._by_name.get(name)
        return None if queue is None or queue.deleted else queue

    def require(self, name: str) -> Queue:
        """Like `find_cached`, but raises MissingQueue instead of returning None."""
        queue = self.find_cached(name)
        if queue is None:
            raise MissingQueue(name)
        return queue

    def cached_including_deleted(self, names: Iterable[str]) -> dict[str, Queue]:
        """Returns the queues of these names that are in the cache, deleted or not."""
        return {name: self._by_name[name] for name in names if name in self._by_name}

    async def find(self, name: str) -> Queue | None:
        """Returns the queue, deleted or not. Reads the database if the cache lacks it."""
        await self._load_names([name])
        return self._by_name.get(name)

    async def find_all(self, names: Sequence[str]) -> list[Queue]:
        """Returns the queues of these names, in their order, deleted or not. Skips missing ones."""
        await self._load_names(names)
        return list(self.cached_including_deleted(names).values())

    async def get(self, name: str) -> Queue:
        """Returns the queue, or raises NotFound if it does not exist or is deleted."""
        queue = await self.find(name)
        if queue is None or queue.deleted:
            raise NotFound(f"no queue named {name}")
        return queue

    async def find_name(self, lane: int) -> str:
        """Returns the name of the queue of this lane. Reads the database if the cache lacks it."""
        await self.load_lanes({lane})
        queue = self._by_id.get(queue_id_of(lane))
        return queue.name if queue else f"queue-{queue_id_of(lane)}"

    async def accessible_ids(self, ids: Iterable[UUID], access: Access) -> set[UUID]:
        """Returns those of the job ids whose queues the caller may access.

        An invented id may belong to no queue. Only a caller with access to all queues gets it back.
        """
        job_ids = set(ids)
        if access.all_queues:
            return job_ids
        await self.load_lanes({lane_of(job_id) for job_id in job_ids})
        return {job_id for job_id in job_ids if access.allows(self.name_by_id(queue_id_of(lane_of(job_id))) or "")}

    async def has_lane(self, lane: int) -> bool:
        """Whether the queue of this lane exists. The lane may come from an invented job id."""
        await self.load_lanes([lane])
        return queue_id_of(lane) in self._by_id

    def by_lane(self, lane: int) -> Queue:
        return self._by_id[queue_id_of(lane)]

    def is_paused(self, lane: int) -> bool:
        """Whether the queue of this lane is paused now.

        A claim asks right before its statement: while it waited for a connection or a lock, the
        pause may have been answered.
        """
        return self.by_lane(lane).paused

    def held_groups(self, lane: int) -> list[str] | None:
        """Returns the groups of this lane whose jobs need an admission.

        The result is the parameter :held_groups of statements (`is_held` in fragments.sql). The
        text `*` stands for every group, and the empty text for the jobs without a group. None means
        that no job needs an admission.
        """
        return self._held_groups(self._by_id.get(queue_id_of(lane)), lane)

    def _held_groups(self, queue: Queue | None, lane: int) -> list[str] | None:
        cooling_groups = self.cooling_groups.get(lane)
        if queue is None or not queue.holds_all_groups:
            return cooling_groups or None
        return ["*", *([""] if queue.fair else []), *(cooling_groups or [])]

    def has_max_running(self, lane: int) -> bool:
        """Whether `max_running` limits the leases of this lane."""
        queue = self._by_id.get(queue_id_of(lane))
        return queue is not None and queue.max_running is not None

    def needs_admission(self, queue: Queue, lane: int, group: str | None) -> bool:
        """Whether a new job of this group (None: without a group) needs an admission."""
        held_groups = self._held_groups(queue, lane)
        return held_groups is not None and ((group or "") in held_groups or (group is not None and "*" in held_groups))

    def name_by_lane(self, lane: int) -> str:
        return self.by_lane(lane).name

    def retention(self, lane: int, now: datetime) -> tuple[datetime, bool]:
        """Returns when the retention of a job that finishes at `now` ends, and whether the job is
        then archived.

        A partition of jobs to archive is detached. Any other is dropped.
        """
        settings = self._infra.settings
        queue = self._by_id.get(queue_id_of(lane))
        retention = value_or(queue.config.retention, Retention()) if queue else Retention()
        mode = value_or(retention.mode, RetentionMode(settings.finished_mode))
        seconds = value_or(retention.finished_seconds, settings.finished_seconds)
        return now + timedelta(seconds=seconds), mode is RetentionMode.DETACH
