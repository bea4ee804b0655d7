"""The cache of queues in this process: by name for callers, by number for lanes."""

from collections.abc import Container, Sequence
from datetime import datetime, timedelta

from app.db.floor import Floor
from app.db.lanes import lanes_of, queue_id_of
from app.errors import NotFound, QueueLimit
from app.queues import store
from app.queues.store import Queue

_TRIES = 20  # each lost race for a number means that somebody else won one


class Queues:
    def __init__(self, floor: Floor) -> None:
        self._floor = floor
        self._by_name: dict[str, Queue] = {}
        self._by_id: dict[int, Queue] = {}

    async def refresh(self) -> None:
        queues = await store.all_queues(self._floor.db)
        self._by_name = {queue.name: queue for queue in queues}
        self._by_id = {queue.id: queue for queue in queues}

    def known(self) -> list[Queue]:
        return list(self._by_name.values())

    def lanes(self, names: Container[str] | None = None) -> list[int]:
        """The lanes of these queues, or of all that are known."""
        return [lane for queue in self.known() if names is None or queue.name in names for lane in lanes_of(queue.id, queue.lanes)]

    def name_of_id(self, queue_id: int) -> str | None:
        queue = self._by_id.get(queue_id)
        return queue.name if queue else None

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
        if queue is None:
            raise NotFound(f"no queue named {name}")
        return queue

    async def get_or_create(self, name: str) -> Queue:
        for _ in range(_TRIES):
            queue = await self.find(name)
            if queue is not None:
                return queue
            self._check_may_create(name)
            await store.add_queue(self._floor.db, name, self._floor.settings.max_queues)
        raise QueueLimit("the queue could not be created", retry_after=1)

    def _check_may_create(self, name: str) -> None:
        if not self._floor.settings.create_queues:
            raise NotFound(f"no queue named {name}, and this broker does not create queues on enqueue")
        if len(self._by_name) >= self._floor.settings.max_queues:
            raise QueueLimit(f"there are {len(self._by_name)} queues already", retry_after=60)

    async def name_of(self, lane: int) -> str:
        """A lane can come from a job that another process put into a queue which this one has not heard of yet."""
        if queue_id_of(lane) not in self._by_id:
            await self.refresh()
        queue = self._by_id.get(queue_id_of(lane))
        return queue.name if queue else f"queue-{queue_id_of(lane)}"

    async def learn(self, lanes: set[int]) -> None:
        """After this, `name` knows these lanes."""
        for lane in lanes:
            await self.name_of(lane)

    def name(self, lane: int) -> str:
        return self._by_id[queue_id_of(lane)].name

    def retention(self, now: datetime) -> tuple[datetime, bool]:
        """Until when a job that finishes now is kept, and whether it goes to an archive afterwards."""
        settings = self._floor.settings
        return now + timedelta(seconds=settings.finished_seconds), settings.finished_mode == "detach"
