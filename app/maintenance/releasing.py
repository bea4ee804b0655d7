"""blocked -> ready | parked | scheduled | cancelled: when a job has ended, those that waited for it go on, or are cancelled with it.

Off the path of the settlement, which only writes down that the job has ended. Nothing here can be done twice: a parent that is taken out
of `awaits` again is not there, and a child that has gone matches no statement.
"""

from collections.abc import Sequence
from uuid import UUID

from app.db.floor import Floor
from app.db.lanes import by_lane
from app.dependencies import store
from app.jobs import store as jobs
from app.jobs.signals import Move, Signals
from app.log import log
from app.queues.registry import Queues

ENDINGS = 100
CHILDREN = 1000


class Releasing:
    def __init__(self, floor: Floor, queues: Queues, signals: Signals) -> None:
        self._floor = floor
        self._queues = queues
        self._signals = signals

    async def run_once(self) -> None:
        while ended := await store.ended_jobs(self._floor.db, ENDINGS):
            for row in ended:
                await self._tell_children(row["lane"], row["id"], row["state"])

    async def _tell_children(self, lane: int, parent: UUID, state: str) -> None:
        failed = state != "completed"
        while children := await store.children_of(self._floor.db, lane, parent, state, CHILDREN):
            for child_lane, ids in by_lane(children, lambda job_id: job_id).items():
                await self._queues.learn([child_lane])
                if failed:
                    await self._cancel(child_lane, ids, parent)
                await self._release(child_lane, ids, parent, failed=failed)
            await store.forget_dependents(self._floor.db, lane, parent, children)
        await store.forget_ending(self._floor.db, lane, parent)

    async def _release(self, lane: int, ids: Sequence[UUID], parent: UUID, *, failed: bool) -> None:
        parks = self._queues.parks(lane)
        rows = await store.release(self._floor.db, lane, ids, parent, failed=failed, now=self._floor.now(), parks=parks)
        self._signals.moved(lane, [Move(*row) for row in rows])

    async def _cancel(self, lane: int, ids: Sequence[UUID], parent: UUID) -> None:
        """Their own children hear of it in the next round."""
        doomed = await store.doomed(self._floor.db, lane, ids, parent)
        now = self._floor.now()
        kept = self._queues.retention(lane, now)
        rows = await jobs.cancel_waiting(self._floor.db, lane, doomed, now=now, kept=kept, reason="dependency_failed")
        self._signals.finished(row.id for row in rows)
        if rows:
            log.info("jobs cancelled with the one they waited for", parent=str(parent), count=len(rows))
