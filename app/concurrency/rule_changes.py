"""Applies a changed rule of a queue to the jobs that are in the queue already.

    running -> running   the lease counts against the new limit (concurrency slot, admission)
    ready -> pending     the job's group is limited now
    pending -> ready     the job's group is not limited any more

These changes are made off the request path. A delay is safe, because claims skip ready jobs that
should be pending.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from app.concurrency import store
from app.concurrency.group_scheduler import GroupScheduler
from app.concurrency.lane_admissions import HOLD_BACK_LIMIT
from app.db.infrastructure import Infrastructure
from app.db.lanes import FIRST_ID, group_by_lane, queue_id_of
from app.db.pool import for_each, retry_after_deadlock
from app.errors import DatabaseUnavailable
from app.events import EventBus, JobsClaimable, QueueReady
from app.locks import store as locks
from app.periodic_service import PeriodicService
from app.queues.cache import Queue, QueueCache
from app.slices import in_slices

PAGE_SIZE = 2000  # jobs of a lane that one statement processes
# The running jobs are counted again this long after a change: a claim that has read the old rules
# may wait that long for a connection before it writes.
RECOUNT_AFTER_SECONDS = (1.0, 10.0)
HOLD_BACK_COOLING_SECONDS, HOLD_BACK_ALL_SECONDS = 1.0, 10.0


class Rules(NamedTuple):
    """The rules of a queue that decide the states and counts of its jobs."""

    max_running_per_group: int | None = None
    fair: bool = False
    uses_slots: bool = False

    @classmethod
    def of(cls, queue: Queue) -> "Rules":
        return cls(queue.max_running_per_group, queue.fair, queue.max_running is not None)


_NO_RULES = Rules()


class RuleChanges(PeriodicService):
    def __init__(
        self, *, infra: Infrastructure, queues: QueueCache, events: EventBus, group_scheduler: GroupScheduler
    ) -> None:
        super().__init__()
        self._infra = infra
        self._queues = queues
        self._events = events
        self._group_scheduler = group_scheduler
        self._applied_rules: dict[int, Rules] = {}
        self._queues_to_recount: set[int] = set()
        self._page_starts: dict[int, UUID] = {}
        self._rule_versions: Counter[int] = Counter()
        self._held_back_cooling_at = self._held_back_all_at = 0.0
        # Serializes `apply_changes`, because the call with the older rules must not finish last.
        self._apply_lock = asyncio.Lock()
        infra.config_versions.subscribe("policies", self.apply_changes)

    async def apply_changes(self) -> None:
        """Finds queues with changed rules, and counts their running jobs against the new limits.

        `run_once` makes all other changes later. The running jobs are counted first, so that the
        first claim under a new limit sees them. If the row of a job is locked, `run_once` counts
        again, and no request waits for the lock.
        """
        async with self._apply_lock:
            changed = {
                queue.id: queue
                async for queue in in_slices(self._queues.all_including_deleted())
                if Rules.of(queue) != self._applied_rules.get(queue.id, _NO_RULES)
            }
            try:
                await self._assign_slots(changed.values())
            except DatabaseUnavailable:
                self._queues_to_recount |= changed.keys()
            for queue in changed.values():
                self._start_applying(queue)
        self.wake()

    def _start_applying(self, queue: Queue) -> None:
        self._applied_rules[queue.id] = Rules.of(queue)
        self._page_starts |= dict.fromkeys(queue.all_lanes, FIRST_ID)
        self._rule_versions.update(queue.all_lanes)
        self._events.publish(QueueReady(queue.id))  # a raised limit may let pollers claim
        for seconds in RECOUNT_AFTER_SECONDS:
            asyncio.get_running_loop().call_later(seconds, self._request_recount, queue.id)

    def _request_recount(self, queue_id: int) -> None:
        """Requests that the next `run_once` counts the running jobs of the queue again.

        During the change, claims may have written leases that do not count against the new limit.
        """
        self._queues_to_recount.add(queue_id)
        self.wake()

    async def _assign_slots(self, queues: Iterable[Queue]) -> None:
        """Makes the leases of these queues count against the current limits.

        Then revokes the admissions beyond `max_running_per_group`.
        """
        by_id = {queue.id: queue for queue in queues}
        leased_ids = await store.leases_of_queues(self._infra.db, sorted(by_id)) if by_id else []
        for lane, ids in group_by_lane(leased_ids, lambda job_id: job_id).items():
            queue = by_id[queue_id_of(lane)]
            limits_groups = queue.max_running_per_group is not None
            await store.assign_slots(self._infra.db, lane, ids, uses_slot=queue.uses_slot, limits_groups=limits_groups)
        for queue in by_id.values():
            await self._revoke_above_limit(queue)

    async def _revoke_above_limit(self, queue: Queue) -> None:
        if queue.max_running_per_group is not None:
            for lane in queue.all_lanes:
                await self._revoke_above_limit_of_lane(lane, queue.max_running_per_group)

    @retry_after_deadlock
    async def _revoke_above_limit_of_lane(self, lane: int, limit: int) -> None:
        """Revokes the admissions beyond the new limit.

        Runs under the lane lock, so every admission made under the old rules is already visible.
        """
        async with self._infra.db.transaction() as transaction:
            await locks.lock_lane(transaction, lane)
            await store.revoke_above_limit(transaction, lane, limit)

    async def run_once(self) -> None:
        """Processes one page of each lane. So a queue with millions of jobs delays no other queue.

        If a row of one queue is locked, the other queues are still processed.
        """
        steps = (self._recount_leases, self._apply_rules, self._hold_back_cooling, self._hold_back_all)
        await for_each(steps, lambda step: step())
        if self._page_starts:
            self.wake()

    async def _recount_leases(self) -> None:
        """Counts the leases of the queues in `_queues_to_recount` against the current limits."""
        if not self._queues_to_recount:
            return
        queues = [queue for queue in self._queues.all_including_deleted() if queue.id in self._queues_to_recount]
        await for_each(queues, self._recount_leases_of_queue)

    async def _recount_leases_of_queue(self, queue: Queue) -> None:
        await self._assign_slots([queue])
        self._queues_to_recount.discard(queue.id)

    async def _apply_rules(self) -> None:
        await for_each(list(self._page_starts), self._apply_rules_to_page)

    async def _apply_rules_to_page(self, lane: int) -> None:
        """Makes ready jobs of held groups pending, and pending jobs of other groups ready.

        After the last page, the group scheduler checks all groups of the lane.
        """
        after, version = self._page_starts[lane], self._rule_versions[lane]
        page = await store.apply_rules_to_page(self._infra.db, lane, after, self._queues.held_groups(lane), PAGE_SIZE)
        if page.ready:
            self._events.publish(JobsClaimable(lane, page.ready))
        if self._rule_versions[lane] != version:
            return  # the rules have changed in the meantime: start again with the first page
        if page.last is not None:
            self._page_starts[lane] = page.last
        else:
            del self._page_starts[lane]
            self._group_scheduler.rescan(lane)

    async def _hold_back_cooling(self) -> None:
        """Makes ready jobs of cooling groups pending, every second. Claims skip such jobs.

        While no group cools down, the time of the last check is not updated. So the first check
        after a cool-down has begun runs at once.
        """
        lanes = self._queues.cooling_groups
        now = time.monotonic()
        if lanes and now - self._held_back_cooling_at >= HOLD_BACK_COOLING_SECONDS:
            self._held_back_cooling_at = now
            await for_each(lanes, self._hold_back)

    async def _hold_back_all(self) -> None:
        """Makes ready jobs of held groups pending in all lanes, every 10 s.

        Such jobs were enqueued by SQL (longshore_enqueue) in a transaction that was open while the
        rules changed. The client that runs the transaction decides how long it stays open.
        """
        now = time.monotonic()
        if now - self._held_back_all_at >= HOLD_BACK_ALL_SECONDS:
            self._held_back_all_at = now
            await for_each(await self._queues.all_lanes(), self._hold_back)

    async def _hold_back(self, lane: int) -> None:
        held_groups = self._queues.held_groups(lane)
        if held_groups is not None:
            await store.hold_back_first_ready(self._infra.db, lane, held_groups, HOLD_BACK_LIMIT)
