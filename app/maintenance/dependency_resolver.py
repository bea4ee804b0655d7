"""blocked -> ready | parked | scheduled | cancelled: when a job has ended, those that waited for it go on, or are cancelled with it.

Off the path of the settlement, which only writes down that the job has ended. Nothing here can be done twice: a parent that is taken out
of `awaits` again is not there, and a child that has gone matches no statement.
"""

from collections.abc import Sequence
from uuid import UUID

from app.db.infrastructure import Infrastructure
from app.db.lanes import group_by_lane
from app.db.pool import for_each
from app.dependencies import store
from app.dependencies.store import DependentRow
from app.jobs import store as jobs
from app.jobs.signals import Move, Signals
from app.log import log
from app.queues.cache import QueueCache

ENDINGS = 1000
CHILDREN = 1000  # at a time: one by one, a broker told some 200 endings a second


class DependencyResolver:
    def __init__(self, infra: Infrastructure, queues: QueueCache, signals: Signals) -> None:
        self._infra = infra
        self._queues = queues
        self._signals = signals

    async def run_once(self) -> None:
        while ended := await store.unresolved_parents(self._infra.db, ENDINGS):
            lanes = group_by_lane([row["id"] for row in ended], lambda job_id: job_id)
            await for_each(lanes.items(), lambda item: self._tell_children(*item))

    async def _tell_children(self, lane: int, parents: Sequence[UUID]) -> None:
        while told := await store.children_of(self._infra.db, lane, parents, CHILDREN):
            for failed in (False, True):
                await self._tell([row for row in told if row.failed is failed], failed=failed)
            await store.delete_dependents(self._infra.db, lane, told)
        await store.delete_finished_parents(self._infra.db, lane, parents)

    async def _tell(self, told: Sequence[DependentRow], *, failed: bool) -> None:
        parents = sorted({row.parent for row in told})
        for lane, ids in group_by_lane({row.child for row in told}, lambda job_id: job_id).items():
            await self._queues.load([lane])
            if failed:
                await self._cancel(lane, ids, parents)
            await self._release(lane, ids, parents, failed=failed)

    async def _release(self, lane: int, ids: Sequence[UUID], parents: Sequence[UUID], *, failed: bool) -> None:
        held_groups = self._queues.held_groups(lane)
        rows = await store.unblock(
            self._infra.db, lane, ids, parents, failed=failed, now=self._infra.now(), held_groups=held_groups
        )
        self._signals.moved(lane, [Move(*row) for row in rows])

    async def _cancel(self, lane: int, ids: Sequence[UUID], parents: Sequence[UUID]) -> None:
        """Their own children hear of it in the next round."""
        doomed = await store.to_be_cancelled(self._infra.db, lane, ids, parents)
        if not doomed:
            return
        now = self._infra.now()
        kept = self._queues.retention(lane, now)
        rows = await jobs.cancel_waiting(self._infra.db, lane, doomed, now=now, kept=kept, reason="dependency_failed")
        self._signals.finished(row.id for row in rows)
        log.info("jobs cancelled with those they waited for", lane=lane, count=len(rows))
