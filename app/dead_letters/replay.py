"""Replays dead letters, in their own queue or into another.

    dead -> ready | pending | scheduled   in its own queue: the job keeps its id
    dead -> (a new job)                   into another queue: the new job has the id of the old one
                                          as `replayed_from`

In both cases the transaction that stores the job also deletes the dead letter. So of two concurrent
replays, one finds no dead letter.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from app.db.infrastructure import Infrastructure
from app.db.lanes import batches_by_lane, group_by_lane
from app.db.pool import retry_after_deadlock
from app.dead_letters import store
from app.dead_letters.merge_patch import merge_patch
from app.dead_letters.schemas import ReplayOverrides
from app.dead_letters.store import RemovedRow, ReplayParams
from app.errors import raise_for_faults
from app.events import EventBus
from app.http.bodies import user_data_fault
from app.http.schema_types import UNSET, Raw, UnsetType, value_or
from app.jobs import bulk_insert
from app.jobs.rows import NewJob
from app.queues.cache import Queue, QueueCache
from app.queues.creator import QueueCreator
from app.slices import by_size, in_slices

REPLAY_BATCH_SIZE = 100  # dead letters per statement: with their payloads, a batch may take 25 MB


class ReplayTime(NamedTuple):
    """The earliest start of a replayed job, and its state until then.

    A job without a delay is stored as ready, not as scheduled for now. A scheduled job would have
    to wait if the clock was set back by a millisecond.
    """

    run_at: datetime
    state: str

    @classmethod
    def after(cls, seconds: float, now: datetime) -> "ReplayTime":
        return cls(now + timedelta(seconds=seconds), "scheduled" if seconds > 0 else "ready")


class DeadLetterReplayer:
    def __init__(self, *, infra: Infrastructure, queues: QueueCache, creator: QueueCreator, events: EventBus) -> None:
        self._infra = infra
        self._queues = queues
        self._creator = creator
        self._events = events

    async def replay(self, ids: Sequence[UUID], overrides: ReplayOverrides, *, spread_seconds: int) -> list[UUID]:
        """Replays dead letters, and returns the ids of the live jobs.

        Spreads the run_at of the jobs evenly over `spread_seconds`, in the order of `ids`. If the
        jobs stay in their queue, the result has the same order.
        """
        now = self._infra.now()
        step = spread_seconds / len(ids) if ids else 0
        replay_times = {
            job_id: ReplayTime.after(step * index, now) async for index, job_id in in_slices(enumerate(ids))
        }
        replayed: dict[UUID, None] = {}
        replay_batch = self._replay_in_place if overrides.queue is UNSET else self._replay_into_queue
        async for lane, batch in batches_by_lane(ids, REPLAY_BATCH_SIZE):
            replayed |= dict.fromkeys(await replay_batch(lane, batch, replay_times, overrides))
        if overrides.queue is not UNSET:
            return list(replayed)
        return [job_id async for job_id in in_slices(ids) if job_id in replayed]

    async def _replay_in_place(
        self, lane: int, ids: Sequence[UUID], replay_times: dict[UUID, ReplayTime], overrides: ReplayOverrides
    ) -> list[UUID]:
        payloads = await self._merged_payloads(lane, ids, overrides.payload_merge)
        params = [
            ReplayParams(job_id, replay_times[job_id].state, replay_times[job_id].run_at, payloads.get(job_id))
            for job_id in ids
        ]
        await self._queues.load_lanes([lane])
        replayed: list[UUID] = []
        for batch in by_size(params, _payload_bytes, bulk_insert.MAX_STATEMENT_BYTES):
            rows = await store.replay(
                self._infra.db,
                lane,
                batch,
                priority=value_or(overrides.priority, None),
                max_attempts=value_or(overrides.max_attempts, None),
                held_groups=self._queues.held_groups(lane),
            )
            self._events.publish_moved(lane, rows)
            replayed += [row.id for row in rows]
        return replayed

    async def _merged_payloads(
        self, lane: int, ids: Sequence[UUID], patch: dict[str, Raw] | UnsetType
    ) -> dict[UUID, str]:
        """Applies the patch to the payloads, and returns the new payloads by job id.

        Without a patch, returns no payloads. Python merges the patch, not SQL, so that values
        outside the patch keep their original text. Reading the payloads before the replay is safe,
        because the payload of a dead letter does not change.
        """
        if isinstance(patch, UnsetType):
            return {}
        payloads = await store.payloads(self._infra.db, lane, ids)
        return {job_id: self._merge_payload(payload, patch) async for job_id, payload in in_slices(payloads.items())}

    def _merge_payload(self, payload: str, patch: dict[str, Raw]) -> str:
        text = merge_patch(payload, patch)
        limit = self._infra.settings.max_payload_bytes
        raise_for_faults([user_data_fault(Raw(text.encode()), limit, "/overrides/payload_merge")])
        return text

    async def _replay_into_queue(
        self, lane: int, ids: Sequence[UUID], replay_times: dict[UUID, ReplayTime], overrides: ReplayOverrides
    ) -> list[UUID]:
        """Deletes the dead letters and inserts new jobs in another queue, in one transaction."""
        name = value_or(overrides.queue, "default")
        return await self._creator.run_with_queues(
            [name], lambda find: self._move_to_queue(find(name), lane, ids, replay_times, overrides)
        )

    @retry_after_deadlock
    async def _move_to_queue(
        self,
        queue: Queue,
        lane: int,
        ids: Sequence[UUID],
        replay_times: dict[UUID, ReplayTime],
        overrides: ReplayOverrides,
    ) -> list[UUID]:
        async with self._infra.db.transaction() as transaction:
            removed = await store.remove(transaction, lane, ids)
            new_jobs = [self._new_job(row, queue, replay_times[row.id], overrides) async for row in in_slices(removed)]
            await self._creator.insert_drafts(transaction, [queue] if new_jobs else [])
            for new_lane, rows in group_by_lane(new_jobs, lambda row: row.id).items():
                await bulk_insert.enqueue_all(transaction, new_lane, rows)
        if queue.is_draft:
            await self._queues.reload_names([queue.name])
        for new_lane, rows in group_by_lane(new_jobs, lambda row: row.id).items():
            self._events.publish_moved(new_lane, rows)
        return [row.id for row in new_jobs]

    def _new_job(self, row: RemovedRow, queue: Queue, replay_time: ReplayTime, overrides: ReplayOverrides) -> NewJob:
        patch = value_or(overrides.payload_merge, None)
        lane = queue.choose_lane(row.group_key)
        return NewJob(
            id=self._infra.job_ids.generate(lane, self._infra.now()),
            state="pending"
            if replay_time.state == "ready" and self._queues.needs_admission(queue, lane, row.group_key)
            else replay_time.state,
            reason=None,
            run_at=replay_time.run_at,
            priority=value_or(overrides.priority, row.priority),
            max_attempts=value_or(overrides.max_attempts, row.max_attempts),
            job_type=row.job_type,
            group_key=row.group_key,
            lease_seconds=row.lease_seconds,
            retry=row.retry,
            tags=row.tags,
            metadata=row.metadata,
            traceparent=row.traceparent,
            tracestate=row.tracestate,
            replayed_from=row.id,
            payload=row.payload if patch is None else self._merge_payload(row.payload, patch),
            timeout_seconds=row.timeout_seconds,
        )


def _payload_bytes(params: ReplayParams) -> int:
    return len(params.payload or "")
