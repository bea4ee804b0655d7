"""How jobs come in: one, many, all or nothing, at most once per Idempotency-Key. And what others may hold against them: a unique key that
is taken, a queue that is full, jobs that have to be done before."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import TypeVar
from uuid import UUID

from app.db.batcher import Batcher
from app.db.infrastructure import Infrastructure
from app.db.lanes import KEY_LANES, by_lane, digest, lane_of, lane_of_key, queue_lock_id
from app.db.pool import Executor, Transaction, retry_after_deadlock
from app.enqueue import defaults, parents, results, uniqueness
from app.enqueue.defaults import Trace
from app.enqueue.drafts import JobDraft, new_rows
from app.enqueue.offers import MakeOffer, no_offer
from app.enqueue.parser import JobParser, reject_inaccessible_queues
from app.enqueue.results import EnqueueResult
from app.errors import Fault, IdempotencyKeyReused, NotFound, Problem, QueueFull
from app.http.authorization import Access
from app.http.request_body import LARGE
from app.http.schema_types import value_or
from app.jobs import store
from app.jobs.schemas import BatchAnswer, BatchJob, Job, JobCreate, UnreadBatch
from app.jobs.signals import Move, Signals
from app.jobs.store import NewJob
from app.locks import store as keys
from app.queues.cache import MissingQueue, Queue, QueueCache
from app.queues.creator import Find, QueueCreator
from app.slices import in_slices

T = TypeVar("T")
TRIES = 3
MAX_SHARED_JOBS = 100  # jobs that may share a statement: for more, company would cost more time than it saves
_NO_TRACE: Trace = {}
_id_of: Callable[[NewJob], UUID] = attrgetter("id")


@dataclass(frozen=True, slots=True)
class RequestKey:
    """An Idempotency-Key: whose it is and for which operation, and what the first body was."""

    name: str
    operation: str
    caller: str
    body: object

    @property
    def digest(self) -> UUID:
        return digest("enqueue", self.operation, self.name, *filter(None, [self.caller]))

    @property
    def lane(self) -> int:
        return lane_of_key(self.digest, KEY_LANES)


class EnqueueService:
    def __init__(
        self, infra: Infrastructure, queues: QueueCache, creator: QueueCreator, reading: JobParser, signals: Signals
    ) -> None:
        self._infra = infra
        self._queues = queues
        self._creator = creator
        self._reading = reading
        self._signals = signals
        self.offer: MakeOffer = no_offer
        self._arrivals = Batcher(
            "enqueue", self._add_together, infra.settings.acquire_timeout_seconds, len, heaviest=MAX_SHARED_JOBS
        )

    @retry_after_deadlock
    async def enqueue(self, job: JobCreate, trace: Trace, key: str | None, access: Access) -> tuple[Job, bool]:
        """The job as stored; for a key of either kind that was used before, the job that is there, as it is now; and whether it was
        there already for a unique key."""
        access.check(value_or(job.queue, "default"), "/queue")
        await self._infra.versions.ensure_fresh()
        self._reading.check(job)
        try:
            return await self._enqueue(job, trace, key, access, self._queues.existing)
        except MissingQueue:
            return await self._creator.call(
                [value_or(job.queue, "default")], partial(self._enqueue, job, trace, key, access)
            )

    async def _enqueue(
        self, job: JobCreate, trace: Trace, key: str | None, access: Access, find: Find
    ) -> tuple[Job, bool]:
        for tries_left in reversed(range(TRIES)):
            entry = self._reading.entry(job, find, trace)
            if key is None and not entry.needs_transaction:
                await self._arrivals.add(entry.lane, [entry.row])
                return defaults.to_response(entry.row, entry.queue.name), False
            await self._refuse_foreign_parents([entry], access)
            (stored,) = await self._store(
                [entry], RequestKey(key, "enqueue_job", access.caller, job) if key else None, atomic=True
            )
            assert stored.job_id is not None, "what is refused has been raised"
            if stored.job_id == entry.row.id and entry.row.state != "cancelled":
                return defaults.to_response(entry.row, entry.queue.name), False
            try:
                return await self._as_it_is_now(stored.job_id), stored.duplicate
            except NotFound:  # the job that has the unique key has been purged just now: the key is free
                if key is not None or not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")

    async def _add_together(self, lane: int, calls: Sequence[Sequence[NewJob]]) -> Sequence[None]:
        """Jobs of different callers, which nothing holds back."""
        await self._insert(lane, sorted(chain.from_iterable(calls), key=_id_of) if len(calls) > 1 else calls[0])
        return [None] * len(calls)

    async def finish(self) -> None:
        await self._arrivals.finish()

    @retry_after_deadlock
    async def enqueue_batch(
        self, batch: UnreadBatch, trace: Trace, key: str | None, request_id: str, access: Access
    ) -> BatchAnswer:
        await self._infra.versions.ensure_fresh()
        atomic = value_or(batch.atomic, True)
        jobs = reject_inaccessible_queues(await self._read(batch), access)
        if atomic:
            results.check_all(jobs)
        store = partial(
            self._store_batch,
            jobs,
            trace,
            RequestKey(key, "enqueue_jobs", access.caller, batch) if key else None,
            access,
            atomic,
        )
        try:
            stored = await store(self._queues.existing)
        except MissingQueue:
            stored = await self._creator.call(
                [value_or(job.queue, "default") for job in jobs if isinstance(job, BatchJob)], store
            )
        return results.to_response(stored, request_id, atomic=atomic)

    async def _store_batch(
        self,
        jobs: Sequence[BatchJob | Problem],
        trace: Trace,
        key: RequestKey | None,
        access: Access,
        atomic: bool,
        find: Find,
    ) -> list[EnqueueResult]:
        entries = await self._reading.entries(jobs, find, trace, atomic=atomic)
        if atomic:
            results.check_all(entries)
        await self._refuse_foreign_parents([entry for entry in entries if isinstance(entry, JobDraft)], access)
        return await self._store(entries, key, atomic=atomic)

    async def _refuse_foreign_parents(self, entries: Sequence[JobDraft], access: Access) -> None:
        """A job of a queue that the caller does not reach is as good as none: its result would be told to who claims the child."""
        if access.everything or not any(entry.parents for entry in entries):
            return
        named = {parent async for entry in in_slices(entries) for parent in entry.parents}
        named -= {entry.row.id for entry in entries}
        foreign = named - await self._queues.visible_to(named, access)
        async for entry in in_slices(entries):
            entry.problem = entry.problem or parents.unknown_parent(entry, foreign)

    async def _read(self, batch: UnreadBatch) -> list[BatchJob | Problem]:
        """Many large payloads take a while to be checked, in which others are served."""
        if sum(len(bytes(job)) for job in batch.jobs) > LARGE:
            return await asyncio.to_thread(self._reading.read, batch)
        return self._reading.read(batch)

    # For schedules: the same checks, and a place in a transaction that is not ours.

    def check(self, job: JobCreate, at: str) -> None:
        self._reading.check(job, at)

    async def with_queue(self, job: JobCreate, act: Callable[[Find], Awaitable[T]]) -> T:
        """Calls `act` with a function that finds the queue of the job, which `place` creates if it does not exist."""
        name = value_or(job.queue, "default")
        try:
            return await act(self._queues.existing)
        except MissingQueue:
            return await self._creator.call([name], act)

    async def place(
        self, on: Transaction, job: JobCreate, find: Find, *, schedule: str, count: int = 1
    ) -> list[JobDraft]:
        """Its payload was checked when the schedule was made: a schema that has changed since breaks no work that is planned."""
        entries = [self._reading.entry(job, find, _NO_TRACE) for _ in range(count)]
        for entry in entries:
            entry.row = entry.row._replace(schedule=schedule)
        await self._write(on, entries, atomic=True)
        return entries

    async def announce(self, *entries: JobDraft) -> None:
        """Call it after the commit. Reloads the queue cache if a queue was created, before its jobs are announced."""
        if any(entry.queue.is_draft for entry in entries):
            await self._queues.refresh()
        self._tell(entries)

    async def _store(
        self, items: Sequence[JobDraft | Problem], key: RequestKey | None, *, atomic: bool
    ) -> list[EnqueueResult]:
        """What became of each; for a repeated key what became of it the first time. One lane, without a key and without anything to ask
        before, is one statement in autocommit."""
        entries = [item for item in items if isinstance(item, JobDraft)]
        if (
            key is None
            and not any(entry.needs_transaction for entry in entries)
            and await self._stored_at_once(entries)
        ):
            return [results.result_of(item) for item in items]
        if key is not None or entries:
            known = await self._store_together(items, entries, key, atomic=atomic)
            if known is not None:
                return [results.replayed_job(index, *one) for index, one in enumerate(zip(known, items, strict=True))]
        await self.announce(*entries)
        return [results.result_of(item) for item in items]

    async def _stored_at_once(self, entries: Sequence[JobDraft]) -> bool:
        """Their ids were minted in their order."""
        lanes = {entry.lane for entry in entries}
        if len(lanes) != 1:
            return False
        await self._arrivals.add(lanes.pop(), [entry.row for entry in entries])
        return True

    async def _insert(self, lane: int, rows: Sequence[NewJob]) -> None:
        """In one statement, and for those who wait for them if there are any."""
        offer = no_offer(lane, rows)
        try:
            async with self._infra.db.held() as connection:
                offer = self.offer(lane, rows)
                await store.enqueue(connection, lane, offer.rows)
        except BaseException as error:
            offer.failed(error)
            raise
        offer.stored()
        self._tell_of(lane, offer.rows)

    async def _store_together(
        self, items: Sequence[JobDraft | Problem], entries: Sequence[JobDraft], key: RequestKey | None, *, atomic: bool
    ) -> list[str | None] | None:
        async with self._infra.db.transaction() as transaction:
            if key is not None:
                known = await self._known(transaction, key, [results.result_of(item) for item in items])
                if known is not None:
                    return known
            await self._write(transaction, entries, atomic=atomic)
            if key is not None and any(entry.needs_transaction for entry in entries):
                await keys.write_claim_key(
                    transaction,
                    key.lane,
                    key.digest,
                    results.encode_results([results.result_of(item) for item in items]),
                )
        return None

    async def _known(self, on: Executor, key: RequestKey, expected: Sequence[EnqueueResult]) -> list[str | None] | None:
        fingerprint = defaults.body_fingerprint(key.body)
        expires_at = self._infra.now() + timedelta(seconds=self._infra.settings.idempotency_seconds)
        kept_at = self._infra.retention_now()
        answer = results.encode_results(expected)
        if await keys.acquire_idempotency_key(
            on, key.lane, key.digest, fingerprint=fingerprint, answer=answer, expires_at=expires_at, kept_at=kept_at
        ):
            return None
        first = await keys.read_idempotency_key(on, key.lane, key.digest)
        if first["fingerprint"] != fingerprint:
            raise IdempotencyKeyReused(f"the key {key.name} was used with another body")
        return results.decode_results(first["answer"])

    async def _write(self, on: Executor, entries: Sequence[JobDraft], *, atomic: bool) -> None:
        """Acquires locks in this order: keys, lane locks, jobs, queues."""
        now, kept_at = self._infra.now(), self._infra.retention_now()
        if any(entry.unique for entry in entries):
            ended_by = self._infra.clock.unique_windows.now()
            await uniqueness.find_duplicates(on, entries, self._queues, now, ended_by=ended_by, kept_at=kept_at)
        await self._refuse_what_does_not_fit(on, entries)
        if atomic:
            results.check_all([entry.problem for entry in entries])  # before those that depend on them are refused too
        doomed = await parents.resolve_parents(on, entries, kept_at) if any(entry.parents for entry in entries) else []
        uniqueness.propagate_rejections(entries)
        if atomic:
            results.check_all([entry.problem for entry in entries])
        await uniqueness.replace(on, entries, self._queues, now)
        await self._creator.store(on, [entry.queue for entry in entries if entry.accepted])
        for lane, rows in by_lane(new_rows(entries), _id_of).items():
            for portion in parents.chunks(rows):
                await store.enqueue(on, lane, portion)
        await parents.insert_dependents(on, entries)
        await uniqueness.assign_keys(on, entries, now)
        for lane, some in by_lane(doomed, lambda entry: entry.row.id).items():
            kept = self._queues.retention(lane, now)
            await store.cancel_waiting(
                on, lane, [entry.row.id for entry in some], now=now, kept=kept, reason="dependency_failed"
            )
            for entry in some:
                entry.row = entry.row._replace(state="cancelled")

    async def _refuse_what_does_not_fit(self, on: Executor, entries: Sequence[JobDraft]) -> None:
        """Who counts what waits adds to it alone."""
        limited = {
            entry.queue.id: entry.queue for entry in entries if entry.queue.max_waiting is not None and entry.accepted
        }
        for _, queue in sorted(limited.items(), reverse=True):  # in the order of their doors
            await keys.lock_lane(on, queue_lock_id(queue.id))
            assert queue.max_waiting is not None
            room = queue.max_waiting - await store.count_waiting(on, list(queue.all_lanes))
            own = [entry for entry in entries if entry.queue.id == queue.id and entry.accepted]
            for entry in own[max(room, 0) :]:
                entry.problem = _queue_full(entry, queue)

    def _tell(self, entries: Iterable[JobDraft]) -> None:
        entries = list(entries)
        for lane, rows in by_lane(new_rows(entries), _id_of).items():
            self._tell_of(lane, rows)
        for entry in entries:
            if entry.replaced is not None:
                lane = lane_of(entry.job_id)
                self._signals.moved(lane, [Move(*entry.replaced, entry.row.run_at)])
                self._signals.left(lane, [entry.replaced.group_key])
            if entry.row.state == "cancelled":
                self._signals.ended()

    def _tell_of(self, lane: int, rows: Sequence[NewJob]) -> None:
        """In the order of their ids."""
        self._infra.metrics.enqueued.inc(len(rows))
        self._signals.moved(lane, rows, since=rows[0].id)

    async def _as_it_is_now(self, job_id: UUID) -> Job:
        row = await store.find(self._infra.db, job_id, self._infra.retention_now())
        if row is None:
            raise NotFound(f"job {job_id} of this key is no longer kept")
        return row.to_response(await self._queues.name_of(row.lane))


def _queue_full(entry: JobDraft, queue: Queue) -> QueueFull:
    detail = f"{queue.max_waiting} jobs may wait in {queue.name}, and as many do"
    return QueueFull(detail, [Fault(f"{entry.at}/queue", QueueFull.code, detail)])
