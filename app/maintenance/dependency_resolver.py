"""Unblocks or cancels the children of finished jobs.

    blocked -> ready | pending | scheduled   the last parent has completed; or it has failed, and
                                             the child has `on_parent_failure: run`
    blocked -> cancelled                     a parent has failed, and the child has to be cancelled
                                             (`dependency_failed`)

A settlement only records the finished parent; the resolver changes the children later. Every step
can be repeated: removing a parent from `waiting_for` again changes nothing, and a child that is no
longer `blocked` matches no statement.
"""

from collections.abc import Sequence
from uuid import UUID

from app.db.infrastructure import Infrastructure
from app.db.lanes import group_by_lane
from app.db.pool import for_each
from app.dependencies import store
from app.dependencies.store import DependentRow
from app.events import FINISHED, EventBus, JobsMoved, JobsPurged
from app.jobs import store as jobs
from app.log import log
from app.periodic_service import PeriodicService
from app.queues.cache import QueueCache

# Rows per statement. A broker that resolved parents one by one resolved about 200 parents a second.
PARENT_BATCH_SIZE = 1000
CHILD_BATCH_SIZE = 1000


class DependencyResolver(PeriodicService):
    def __init__(self, *, infra: Infrastructure, queues: QueueCache, events: EventBus) -> None:
        super().__init__()
        self._infra = infra
        self._queues = queues
        self._events = events
        events.subscribe_moved(FINISHED, self._on_finished)
        events.subscribe(JobsPurged, self._on_purged)

    def _on_finished(self, event: JobsMoved) -> None:
        if any(job.has_dependents for job in event.jobs):
            self.wake()

    def _on_purged(self, _event: JobsPurged) -> None:
        self.wake()

    async def run_once(self) -> None:
        while rows := await store.unresolved_parents(self._infra.db, PARENT_BATCH_SIZE):
            lanes = group_by_lane([row["id"] for row in rows], lambda job_id: job_id)
            await for_each(lanes.items(), lambda item: self._resolve_parents(*item))

    async def _resolve_parents(self, lane: int, parents: Sequence[UUID]) -> None:
        """Resolves all children of these finished parents, which are in the same lane."""
        while dependents := await store.children_of(self._infra.db, lane, parents, CHILD_BATCH_SIZE):
            for failed in (False, True):
                await self._resolve([row for row in dependents if row.failed is failed], failed=failed)
            await store.delete_dependents(self._infra.db, lane, dependents)
        await store.delete_finished_parents(self._infra.db, lane, parents)

    async def _resolve(self, dependents: Sequence[DependentRow], *, failed: bool) -> None:
        """Resolves children of finished parents. The children may be in any lane.

        `failed` says whether all these parents have failed; otherwise all have completed.
        """
        parents = sorted({row.parent_id for row in dependents})
        for lane, ids in group_by_lane({row.child_id for row in dependents}, lambda job_id: job_id).items():
            await self._queues.load_lanes([lane])
            if failed:
                await self._cancel(lane, ids, parents)
            await self._unblock(lane, ids, parents, failed=failed)

    async def _unblock(self, lane: int, ids: Sequence[UUID], parents: Sequence[UUID], *, failed: bool) -> None:
        held_groups = self._queues.held_groups(lane)
        rows = await store.unblock(
            self._infra.db, lane, ids, parents, failed=failed, now=self._infra.now(), held_groups=held_groups
        )
        self._events.publish_moved(lane, rows)

    async def _cancel(self, lane: int, ids: Sequence[UUID], parents: Sequence[UUID]) -> None:
        """Cancels children of failed parents, except children with `on_parent_failure: run`.

        The loop in `run_once` then resolves the children of the cancelled jobs, too.
        """
        to_cancel = await store.to_be_cancelled(self._infra.db, lane, ids, parents)
        if not to_cancel:
            return
        now = self._infra.now()
        kept = self._queues.retention(lane, now)
        rows = await jobs.cancel_waiting(
            self._infra.db, lane, to_cancel, now=now, kept=kept, reason="dependency_failed"
        )
        self._events.publish_moved(lane, rows)
        log.info("jobs cancelled because a parent failed", lane=lane, count=len(rows))
