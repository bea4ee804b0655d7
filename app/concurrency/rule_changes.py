"""What a change of a queue's rules means for the jobs that are there: those that run are counted, those that wait are sorted into such as
may be claimed and such as wait for their turn. Off everybody's path: claims hand out nothing that is not sorted."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from uuid import UUID

from app.concurrency import store
from app.concurrency.group_scheduler import HEAD, GroupScheduler
from app.db.infrastructure import Infrastructure
from app.db.lanes import by_lane, queue_id_of
from app.db.pool import for_each, retry_after_deadlock
from app.errors import DatabaseUnavailable
from app.jobs.signals import Signals
from app.locks import store as keys
from app.queues.cache import Queue, QueueCache

PAGE_SIZE = 2000  # jobs, in one statement
ON_THEIR_WAY = (
    1.0,
    10.0,
)  # seconds after which leases are counted again; a request may wait that long for a connection
RESTING_SECONDS, STRAYS_SECONDS = 1.0, 10.0
_FIRST = UUID(int=0)
_NO_RULES = (None, False, False)


class RuleChanges:
    def __init__(
        self, infra: Infrastructure, queues: QueueCache, signals: Signals, group_scheduler: GroupScheduler
    ) -> None:
        self._infra = infra
        self._queues = queues
        self._signals = signals
        self._group_scheduler = group_scheduler
        self._in_force: dict[int, tuple[int | None, bool, bool]] = {}
        self._uncounted: set[int] = set()
        self._unsorted: dict[int, UUID] = {}
        self._changes: Counter[int] = Counter()
        self._resting_at = self._strays_at = 0.0
        self._hearing = asyncio.Lock()  # or rules that were in force for a moment would pass for those that are
        self.wake: Callable[[], None] = lambda: None
        infra.versions.hear("policies", self.hear)

    async def hear(self) -> None:
        """Leases that run are counted before anybody asks how many there are. If that cannot be done now, as somebody has a row, it is
        done later: nobody else need wait for it."""
        async with self._hearing:
            changed = {
                queue.id: queue
                for queue in self._queues.everything()
                if _rules(queue) != self._in_force.get(queue.id, _NO_RULES)
            }
            try:
                await self._count(changed.values())
            except DatabaseUnavailable:
                self._uncounted |= changed.keys()
            for queue in changed.values():
                self._put_in_force(queue)
        self.wake()

    def _put_in_force(self, queue: Queue) -> None:
        self._in_force[queue.id] = _rules(queue)
        self._unsorted |= dict.fromkeys(queue.all_lanes, _FIRST)
        self._changes.update(queue.all_lanes)
        self._signals.ready(queue.all_lanes[0], [None])
        for seconds in ON_THEIR_WAY:
            asyncio.get_running_loop().call_later(seconds, self._count_again, queue.id)

    def _count_again(self, queue_id: int) -> None:
        """For leases that were on their way when the rules changed: they were written by the old ones."""
        self._uncounted.add(queue_id)
        self.wake()

    async def _count(self, queues: Iterable[Queue]) -> None:
        rules = {queue.id: queue for queue in queues}
        running = await store.leases_of_queues(self._infra.db, sorted(rules)) if rules else []
        for lane, ids in by_lane(running, lambda job_id: job_id).items():
            queue = rules[queue_id_of(lane)]
            slots = True if queue.max_running is not None else None
            await store.count_running(
                self._infra.db, lane, ids, slots=slots, group_scheduler=queue.per_group is not None
            )
        for queue in rules.values():
            if queue.per_group is not None:
                for lane in queue.all_lanes:
                    await self._take_surplus(lane, queue.per_group)

    @retry_after_deadlock
    async def _take_surplus(self, lane: int, limit: int) -> None:
        """With the gate held: who decides by the old rules has done so before, and is seen here."""
        async with self._infra.db.transaction() as transaction:
            await keys.lock_lane(transaction, lane)
            await store.revoke_surplus(transaction, lane, limit)

    async def run_once(self) -> None:
        """A page of each lane at a time: a queue of millions holds up no other, nor does one with a row in somebody's hands."""
        await for_each((self._count_late, self._sort_pages, self._park_strays), lambda step: step())
        if self._unsorted:
            self.wake()

    async def _count_late(self) -> None:
        await for_each([queue for queue in self._queues.everything() if queue.id in self._uncounted], self._count_one)

    async def _count_one(self, queue: Queue) -> None:
        await self._count([queue])
        self._uncounted.discard(queue.id)

    async def _sort_pages(self) -> None:
        await for_each(list(self._unsorted), self._sort_page)

    async def _sort_page(self, lane: int) -> None:
        """Ready jobs that have to wait are parked, parked ones that need not are ready."""
        after, changes = self._unsorted[lane], self._changes[lane]
        page = await store.apply_rules_to_page(self._infra.db, lane, after, self._queues.held_groups(lane), PAGE_SIZE)
        if page.ready:
            self._signals.ready(lane, page.ready)
        if self._changes[lane] != changes:
            return  # the rules have changed meanwhile: from the beginning
        if page.last is not None:
            self._unsorted[lane] = page.last
        else:
            del self._unsorted[lane]
            self._group_scheduler.rescan(lane)

    async def _park_strays(self) -> None:
        """Jobs that came in as if nobody had to wait: those of groups at rest, which claims pass over; and those of a queue whose rules
        changed while somebody's own transaction was open (longshore_enqueue), which may take as long as he likes."""
        now = time.monotonic()
        lanes: Iterable[int] = self._queues.resting if now - self._resting_at >= RESTING_SECONDS else ()
        if now - self._strays_at >= STRAYS_SECONDS:
            self._strays_at = now
            lanes = self._queues.lanes()
        for lane in list(lanes):
            self._resting_at = now
            held_groups = self._queues.held_groups(lane)
            if held_groups is not None:
                await store.hold_back_head(self._infra.db, lane, held_groups, HEAD)


def _rules(queue: Queue) -> tuple[int | None, bool, bool]:
    return queue.per_group, queue.fair, queue.max_running is not None
