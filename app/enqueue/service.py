"""Stores new jobs: one or a batch, at most once for each Idempotency-Key.

There are three ways to store jobs:

    insert_batcher.py   one INSERT in autocommit, which concurrent calls share. For jobs of one lane
                        that fit into one statement.
    _insert_columns     one transaction with an INSERT for each lane, or several. For a batch with
                        several lanes or large jobs.
    draft_writer.py     one transaction with keys, queue locks, parents and INSERTs. For jobs that
                        need a decision each: with an Idempotency-Key, unique keys, parents or refs,
                        in a new queue or one with `max_waiting`, or beside rejected jobs.

The first two take the jobs of a batch as columns. The third takes drafts, one for each job.

A batch is stored completely or not at all, unless its `atomic` is false. A job can be rejected
because of its unique key, a full queue (`max_waiting`) or an unknown parent. The service publishes
the events that announce new jobs only after the commit.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar
from uuid import UUID

from app.db.infrastructure import Infrastructure
from app.db.lanes import lane_of
from app.db.pool import Transaction, retry_after_deadlock
from app.enqueue import parents, results
from app.enqueue.batch_parser import BatchParser
from app.enqueue.draft_writer import DraftWriter, RequestKey
from app.enqueue.drafts import JobDraft, new_rows_by_lane
from app.enqueue.insert_batcher import InsertBatcher
from app.enqueue.job_table import NewBatch
from app.enqueue.parser import JobParser, Trace, to_response
from app.enqueue.results import EnqueueResult
from app.enqueue.schemas import BatchAnswer, JobCreate, RawBatch
from app.errors import NotFound, Problem
from app.events import EventBus
from app.http.authorization import Access
from app.http.schema_types import UNSET, value_or
from app.jobs import bulk_insert, store
from app.jobs.schemas import Job
from app.matching.pollers import PollerRegistry
from app.queues.cache import QueueCache
from app.queues.creator import FindQueue, QueueCreator
from app.slices import in_slices

T = TypeVar("T")
MAX_TRIES = 3
_NO_TRACE: Trace = {}


class EnqueueService:
    def __init__(
        self,
        *,
        infra: Infrastructure,
        queues: QueueCache,
        creator: QueueCreator,
        parser: JobParser,
        batch_parser: BatchParser,
        writer: DraftWriter,
        pollers: PollerRegistry,
        events: EventBus,
    ) -> None:
        self._infra = infra
        self._queues = queues
        self._creator = creator
        self._parser = parser
        self._batch_parser = batch_parser
        self._writer = writer
        self._events = events
        self._insert_batcher = InsertBatcher(infra=infra, queues=queues, pollers=pollers, events=events)

    async def enqueue(self, job: JobCreate, trace: Trace, key: str | None, access: Access) -> tuple[Job, bool]:
        """Stores a job. Returns the job, and whether it is a duplicate because of its unique key.

        If the idempotency key or the unique key was used before, returns the existing job as it is
        now.
        """
        name = "default" if job.queue is UNSET else job.queue
        access.check(name, "/queue")
        await self._infra.config_versions.ensure_fresh()
        now = self._infra.now()
        self._parser.check(job, now)
        queue = self._queues.find_cached(name)
        if key is None and queue is not None:
            draft = self._parser.draft(job, queue, now, trace)
            if not draft.needs_transaction:
                await self._insert_batcher.add(draft.lane, [draft.row], weight=1)
                return to_response(job, draft.row, queue.name), False
        return await self._find_queue_and_enqueue(job, trace, key, access)

    @retry_after_deadlock
    async def _find_queue_and_enqueue(
        self, job: JobCreate, trace: Trace, key: str | None, access: Access
    ) -> tuple[Job, bool]:
        """Enqueues a job that may need more than one statement.

        The job has an Idempotency-Key, a unique key or parents, or its queue has `max_waiting` or
        is not cached.
        """
        return await self.with_queue(job, partial(self._try_enqueue, job, trace, key, access))

    async def _try_enqueue(
        self, job: JobCreate, trace: Trace, key: str | None, access: Access, find: FindQueue
    ) -> tuple[Job, bool]:
        """Enqueues a job in the queue that `find` returns.

        Tries again if the existing job with the unique key was purged before it could be read.
        """
        for tries_left in reversed(range(MAX_TRIES)):
            draft = self._parser.draft(job, find(value_or(job.queue, "default")), self._infra.now(), trace)
            if key is None and not draft.needs_transaction:  # `find` has read or created the queue by now
                await self._insert_batcher.add(draft.lane, [draft.row], weight=1)
                return to_response(job, draft.row, draft.queue.name), False
            await self._reject_inaccessible_parents([draft], access)
            (stored,) = await self._insert(
                [draft], RequestKey(key, "enqueue_job", access.caller, job) if key else None, atomic=True
            )
            assert stored.job_id is not None, "an atomic call raises for a rejected job"
            if stored.job_id == draft.row.id and draft.row.state != "cancelled":
                return to_response(job, draft.row, draft.queue.name), False
            try:
                return await self._current_job(stored.job_id), stored.duplicate
            except NotFound:  # the existing job was purged in the meantime: its unique key is free
                if key is not None or not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")

    async def finish(self) -> None:
        """Waits until the shared INSERTs have finished and their calls have the results."""
        await self._insert_batcher.finish()

    @retry_after_deadlock
    async def enqueue_batch(
        self, batch: RawBatch, trace: Trace, key: str | None, request_id: str, access: Access
    ) -> BatchAnswer:
        await self._infra.config_versions.ensure_fresh()
        atomic = value_or(batch.atomic, True)
        table = await self._batch_parser.read(batch, access)
        if atomic:
            results.check_all(table.items)
        request_key = RequestKey(key, "enqueue_jobs", access.caller, batch) if key else None

        async def insert(find: FindQueue) -> BatchAnswer:
            new_batch = await self._batch_parser.build(table, find, trace)
            if request_key is None and not new_batch.needs_drafts:
                await self._insert_columns(new_batch)
                return results.created(new_batch.ids, atomic=atomic)
            stored = await self._insert_drafts(new_batch, request_key, access, atomic=atomic)
            return await results.to_response(stored, request_id, atomic=atomic)

        return await self._creator.run_with_queues(table.queue_names, insert)

    async def _insert_columns(self, batch: NewBatch) -> None:
        """Inserts the jobs of a batch that needs no drafts."""
        if len(batch.jobs_by_lane) == 1:
            ((lane, jobs),) = batch.jobs_by_lane.items()
            if bulk_insert.fit_into_statement(jobs):
                await self._insert_batcher.add(lane, jobs, weight=len(jobs))
                return
        async with self._infra.db.transaction() as transaction:
            for lane, jobs in batch.jobs_by_lane.items():
                await bulk_insert.enqueue_all(transaction, lane, jobs)
        for lane, jobs in batch.jobs_by_lane.items():
            self._insert_batcher.publish(lane, jobs)

    async def _insert_drafts(
        self, batch: NewBatch, key: RequestKey | None, access: Access, *, atomic: bool
    ) -> list[EnqueueResult]:
        drafts = await self._batch_parser.drafts(batch, atomic=atomic)
        if atomic:
            results.check_all(drafts)
        await self._reject_inaccessible_parents([draft for draft in drafts if isinstance(draft, JobDraft)], access)
        return await self._insert(drafts, key, atomic=atomic)

    async def _reject_inaccessible_parents(self, drafts: Sequence[JobDraft], access: Access) -> None:
        """Rejects jobs with a parent in a queue that the caller may not access.

        Otherwise the worker that claims the child would receive the result of that parent. The
        problem is the same as for an unknown parent, so it does not reveal that the parent exists.
        """
        if access.all_queues or not any(draft.parents for draft in drafts):
            return
        parent_ids = {parent async for draft in in_slices(drafts) for parent in draft.parents}
        parent_ids -= {draft.row.id for draft in drafts}
        inaccessible = parent_ids - await self._queues.accessible_ids(parent_ids, access)
        async for draft in in_slices(drafts):
            draft.reject(parents.unknown_parent_problem(draft, inaccessible))

    # Schedules use the next four methods, to enqueue in their own transactions with the same
    # checks. Methods of this class use `with_queue` and `publish_committed`, too.

    def check(self, job: JobCreate, pointer: str) -> None:
        """Raises ValidationFailed if the job of a schedule is invalid."""
        self._parser.check(job, self._infra.now(), pointer)

    async def with_queue(self, job: JobCreate, act: Callable[[FindQueue], Awaitable[T]]) -> T:
        """Calls `act` with a function that returns the job's queue.

        If the queue does not exist, the function returns a draft of the queue. `act` must then
        insert this draft together with the job (`QueueCreator`).
        """
        return await self._creator.run_with_queues([value_or(job.queue, "default")], act)

    async def enqueue_for_schedule(
        self, transaction: Transaction, job: JobCreate, find: FindQueue, *, schedule: str, count: int = 1
    ) -> list[JobDraft]:
        """Inserts `count` jobs of a schedule. Call `publish_committed` after the commit.

        Does not validate the payload, because it was validated when the schedule was created. If
        its schema has changed since then, the schedule must still run.
        """
        queue, now = find(value_or(job.queue, "default")), self._infra.now()
        drafts = [self._parser.draft(job, queue, now, _NO_TRACE) for _ in range(count)]
        for draft in drafts:
            draft.change_row(schedule=schedule)
        await self._writer.write(transaction, drafts, atomic=True)
        return drafts

    async def publish_committed(self, drafts: Sequence[JobDraft]) -> None:
        """Publishes the events of inserted and replaced jobs. Call this after their commit.

        First caches the queues that were created with the jobs, because subscribers find the queue
        of a job in the cache.
        """
        if created := {draft.queue.name for draft in drafts if draft.queue.is_draft}:
            await self._queues.reload_names(sorted(created))
        for lane, rows in new_rows_by_lane(drafts).items():
            self._insert_batcher.publish(lane, rows)
        for draft in drafts:
            if draft.replaced is not None:
                self._events.publish_moved(lane_of(draft.job_id), [draft.replaced])

    async def _insert(
        self, items: Sequence[JobDraft | Problem], key: RequestKey | None, *, atomic: bool
    ) -> list[EnqueueResult]:
        """Inserts the jobs and returns a result for each.

        If the idempotency key was used before, inserts nothing and returns the results of the first
        call.
        """
        drafts = [item for item in items if isinstance(item, JobDraft)]
        if key is not None or drafts:
            first_results = await self._writer.write_in_transaction(items, drafts, key, atomic=atomic)
            if first_results is not None:
                return first_results
        await self.publish_committed(drafts)
        return await results.results_of(items)

    async def _current_job(self, job_id: UUID) -> Job:
        """Reads a stored job as it is now. Raises NotFound if it is no longer stored."""
        row = await store.find(self._infra.db, job_id, self._infra.retention_now())
        if row is None:
            raise NotFound(f"job {job_id} of this key is no longer stored")
        return row.to_response(await self._queues.find_name(row.lane))
