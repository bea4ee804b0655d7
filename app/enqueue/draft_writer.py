"""Stores the drafts of an enqueue, with their keys and dependencies, in one transaction.

The steps of the transaction:

    acquire the idempotency key   if it was used before, nothing is written, and the call returns
                                  the results of the first call
    lock the unique keys          a duplicate is not inserted, but may replace the existing job
    acquire the queue locks       jobs over `max_waiting` are rejected
    lock the parents              the child of an unknown parent is rejected, of a live parent
                                  blocked, of a failed parent cancelled
    insert                        the new queues and the jobs, then their dependencies and unique
                                  keys
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from hashlib import blake2b
from uuid import UUID

import msgspec

from app.db.infrastructure import Infrastructure
from app.db.lanes import KEY_LANES, digest, group_by_lane, lane_of_key, queue_lock_id
from app.db.pool import Executor
from app.enqueue import parents, results, uniqueness
from app.enqueue.drafts import JobDraft, new_rows_by_lane
from app.enqueue.results import EnqueueResult
from app.enqueue.schemas import JobCreate, RawBatch
from app.errors import Fault, IdempotencyKeyReused, Problem, QueueFull
from app.jobs import bulk_insert, store
from app.locks import store as locks
from app.queues.cache import Queue, QueueCache
from app.queues.creator import QueueCreator
from app.slices import in_slices


class RequestKey:
    """An Idempotency-Key, and the body of its request.

    The same text from another caller or for another operation is a different key.
    """

    def __init__(self, key: str, operation: str, caller: str, body: JobCreate | RawBatch) -> None:
        self.key = key
        self.body = body
        self.key_digest = digest("enqueue", operation, key, *([caller] if caller else []))
        self.lane = lane_of_key(self.key_digest, KEY_LANES)


class DraftWriter:
    def __init__(self, *, infra: Infrastructure, queues: QueueCache, creator: QueueCreator) -> None:
        self._infra = infra
        self._queues = queues
        self._creator = creator

    async def write_in_transaction(
        self, items: Sequence[JobDraft | Problem], drafts: Sequence[JobDraft], key: RequestKey | None, *, atomic: bool
    ) -> list[EnqueueResult] | None:
        """Writes the drafts and the idempotency key in a new transaction, and returns None.

        If the key was used before, writes nothing, and returns the results of the first call.
        `items` has the draft of each job of the call, or its problem, in the order of the jobs.
        """
        async with self._infra.db.transaction() as transaction:
            if key is not None:
                first_results = await self._acquire_key(transaction, key, items)
                if first_results is not None:
                    return first_results
            await self.write(transaction, drafts, atomic=atomic)
            if key is not None and any(draft.needs_transaction for draft in drafts):
                response = results.encode_results(await results.results_of(items))
                await locks.write_key_response(transaction, key.lane, key.key_digest, response)
        return None

    async def _acquire_key(
        self, db: Executor, key: RequestKey, items: Sequence[JobDraft | Problem]
    ) -> list[EnqueueResult] | None:
        """Acquires the idempotency key. Returns None if the key is new.

        If the key was used before, returns the results of the first call.

        Stores with the key the results that are known so far. If writing the drafts can change the
        results, `write_in_transaction` stores the final results afterwards.
        """
        request_digest = await body_digest(key.body)
        if await locks.acquire_idempotency_key(
            db,
            key.lane,
            key.key_digest,
            body_digest=request_digest,
            response=results.encode_results(await results.results_of(items)),
            expires_at=self._infra.now() + timedelta(seconds=self._infra.settings.idempotency_seconds),
            retention_now=self._infra.retention_now(),
        ):
            return None
        first = await locks.read_idempotency_key(db, key.lane, key.key_digest)
        if first["body_digest"] != request_digest:
            raise IdempotencyKeyReused(f"the key {key.key} was already used with a different body")
        return results.decode_results(first["response"], items)

    async def write(self, db: Executor, drafts: Sequence[JobDraft], *, atomic: bool) -> None:
        """Writes the drafts in the transaction `db`.

        Acquires locks in this order: deduplication keys, queue locks, parents, replaced jobs, new
        queues.
        """
        now, retention_now = self._infra.now(), self._infra.retention_now()
        has_keys = any(draft.unique for draft in drafts)
        has_parents = any(draft.parents for draft in drafts)
        if has_keys:
            window_now = self._infra.clock.unique_windows.now()
            await uniqueness.find_duplicates(
                db, drafts, self._queues, now, window_now=window_now, retention_now=retention_now
            )
        await self._enforce_max_waiting(db, drafts)
        if atomic:
            # Raises here, before the children of rejected jobs are rejected, too. So the problem
            # lists only jobs with a fault of their own.
            results.check_all([draft.problem for draft in drafts])
        to_cancel = await parents.resolve_parents(db, drafts, retention_now) if has_parents else []
        if has_keys:
            uniqueness.propagate_rejections(drafts)
        if atomic:
            results.check_all([draft.problem for draft in drafts])
        if has_keys:
            await uniqueness.replace(db, drafts, self._queues, now)
        if any(draft.queue.is_draft for draft in drafts):
            await self._creator.insert_drafts(db, [draft.queue for draft in drafts if draft.accepted])
        for lane, rows in new_rows_by_lane(drafts).items():
            await bulk_insert.enqueue_all(db, lane, rows)
        if has_parents:
            await parents.insert_dependents(db, drafts)
        if has_keys:
            await uniqueness.assign_keys(db, drafts, now)
        if to_cancel:
            await self._cancel(db, to_cancel, now)

    async def _cancel(self, db: Executor, drafts: Sequence[JobDraft], now: datetime) -> None:
        """Cancels the jobs that have a failed parent. Call this after the jobs are inserted."""
        for lane, lane_drafts in group_by_lane(drafts, lambda draft: draft.row.id).items():
            kept = self._queues.retention(lane, now)
            await store.cancel_waiting(
                db, lane, [draft.row.id for draft in lane_drafts], now=now, kept=kept, reason="dependency_failed"
            )
            for draft in lane_drafts:
                draft.change_row(state="cancelled")

    async def _enforce_max_waiting(self, db: Executor, drafts: Sequence[JobDraft]) -> None:
        """Rejects the jobs that exceed `max_waiting`.

        The queue lock makes counting and inserting atomic.
        """
        limited = {
            draft.queue.id: draft.queue for draft in drafts if draft.queue.max_waiting is not None and draft.accepted
        }
        for _, queue in sorted(limited.items(), reverse=True):  # in lock order: the number of a queue lock is -id
            await locks.lock_lane(db, queue_lock_id(queue.id))
            assert queue.max_waiting is not None
            free = queue.max_waiting - await store.count_waiting(db, list(queue.all_lanes))
            candidates = [draft for draft in drafts if draft.queue.id == queue.id and draft.accepted]
            for draft in candidates[max(free, 0) :]:
                draft.reject(_queue_full(draft, queue))


def _queue_full(draft: JobDraft, queue: Queue) -> QueueFull:
    detail = f"{queue.name} has reached its limit of {queue.max_waiting} waiting jobs"
    return QueueFull(detail, [Fault(f"{draft.pointer}/queue", QueueFull.code, detail)])


async def body_digest(body: JobCreate | RawBatch) -> UUID:
    """Hashes a request body.

    The order of the keys in an object does not change the digest, because a client that retries may
    reorder the keys.
    """
    if isinstance(body, JobCreate):
        return digest(_sorted_json(body).decode())
    hashed = blake2b(_sorted_json(msgspec.structs.replace(body, jobs=[])).removesuffix(b"]}"), digest_size=16)
    separator = b""
    async for job in in_slices(body.separate_jobs()):
        hashed.update(separator + _sorted_json(job))
        separator = b","
    hashed.update(b"]}")
    return UUID(bytes=hashed.digest())


def _sorted_json(body: object) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(msgspec.json.encode(body)), order="sorted")
