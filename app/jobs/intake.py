"""How jobs come in: one, many, all or nothing, at most once per Idempotency-Key."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import msgspec

from app.db.floor import Floor
from app.db.lanes import KEY_LANES, by_lane, digest, lane_of, spread
from app.errors import BatchTooLarge, Fault, IdempotencyKeyReused, NotFound, Problem, QueueLimit, ValidationFailed
from app.jobs import store, wanted
from app.jobs.schemas import BatchAnswer, BatchJob, BatchResult, Job, JobCreate, UnreadBatch
from app.jobs.signals import Signals
from app.jobs.store import NewJob
from app.jobs.wanted import Trace
from app.queues.registry import Queues
from app.web.bodies import decode
from app.web.problems import details
from app.web.shapes import UNSET, Raw, given

_ids = msgspec.json.Decoder(list[UUID | None])
_batch_job = msgspec.json.Decoder(BatchJob)


@dataclass(frozen=True, slots=True)
class Key:
    """An Idempotency-Key: whose it is and for which operation, and what the first body was."""

    name: str
    operation: str
    body: object

    @property
    def digest(self) -> UUID:
        return digest("enqueue", self.operation, self.name)


class Intake:
    def __init__(self, floor: Floor, queues: Queues, signals: Signals) -> None:
        self._floor = floor
        self._queues = queues
        self._signals = signals

    async def enqueue(self, job: JobCreate, trace: Trace, key: str | None) -> Job:
        """The job as stored; for a repeated key the job of the first call, as it is now."""
        wanted.check(job, self._floor.settings, self._floor.now())
        row = await self._prepare(job, trace)
        (stored,) = await self._store([row], Key(key, "enqueue_job", job) if key else None)
        if stored is None or stored == row.id:
            return wanted.told(row, self._queues.name(lane_of(row.id)))
        return await self._as_it_is_now(stored)

    async def enqueue_batch(self, batch: UnreadBatch, trace: Trace, key: str | None, request_id: str) -> BatchAnswer:
        atomic = given(batch.atomic, True)
        jobs = self._read(batch)
        if atomic:
            _check_all(jobs)
        rows = [await self._prepare_one(job, trace, f"/jobs/{index}") for index, job in enumerate(jobs)]
        if atomic:
            _check_all(rows)
        stored = await self._store(rows, Key(key, "enqueue_jobs", batch) if key else None)
        results = [_batch_result(index, item, job_id, request_id) for index, (item, job_id) in enumerate(zip(rows, stored, strict=True))]
        created = sum(result.status == "created" for result in results)
        return BatchAnswer(results=results, created=created, duplicates=0, rejected=UNSET if atomic else len(results) - created)

    def _read(self, batch: UnreadBatch) -> list[JobCreate | Problem]:
        """Each job, or what is wrong with it. Nothing is written before all have been read, not even a queue."""
        most = self._floor.settings.max_batch_jobs
        if len(batch.jobs) > most:
            raise BatchTooLarge(f"{len(batch.jobs)} jobs, at most {most} are taken", most)
        if not batch.jobs:
            raise ValidationFailed.at("/jobs", "at least one job")
        return [self._read_one(raw, f"/jobs/{index}") for index, raw in enumerate(batch.jobs)]

    def _read_one(self, raw: Raw, at: str) -> JobCreate | Problem:
        try:
            job = decode(_batch_job, raw, at)
            wanted.check(job, self._floor.settings, self._floor.now(), at)
        except Problem as problem:
            return problem
        return job

    async def _prepare(self, job: JobCreate, trace: Trace) -> NewJob:
        queue = await self._queues.get_or_create(given(job.queue, "default"))
        return wanted.new_job(job, wanted.choose_lane(queue, job.group), self._floor, trace)

    async def _prepare_one(self, job: JobCreate | Problem, trace: Trace, at: str) -> NewJob | Problem:
        """A queue that does not exist and may not be made is the fault of its job alone."""
        if isinstance(job, Problem):
            return job
        try:
            return await self._prepare(job, trace)
        except (NotFound, QueueLimit) as problem:
            problem.faults = [Fault(f"{at}/queue", problem.code, problem.detail)]
            return problem

    async def _store(self, items: Sequence[NewJob | Problem], key: Key | None) -> list[UUID | None]:
        """The id of each job, None for what was refused; for a repeated key those of the first call. One lane without a key is one
        statement in autocommit."""
        lanes = by_lane([item for item in items if isinstance(item, NewJob)], lambda row: row.id)
        ids = [item.id if isinstance(item, NewJob) else None for item in items]
        if key is None and len(lanes) == 1:
            await store.enqueue(self._floor.db, *next(iter(lanes.items())))
        elif key is not None or lanes:
            known = await self._store_together(lanes, ids, key)
            if known is not None:
                return known
        self._tell(lanes)
        return ids

    async def _store_together(self, lanes: dict[int, list[NewJob]], ids: list[UUID | None], key: Key | None) -> list[UUID | None] | None:
        async with self._floor.db.transaction() as transaction:
            if key is not None:
                fingerprint = wanted.fingerprint_of(key.body)
                key_lane = spread(key.digest, KEY_LANES)
                now = self._floor.now()
                expires_at = now + timedelta(seconds=self._floor.settings.idempotency_seconds)
                answer = msgspec.json.encode(ids).decode()
                if not await store.take_key(
                    transaction, key_lane, key.digest, fingerprint=fingerprint, answer=answer, expires_at=expires_at, now=now
                ):
                    first = await store.read_key(transaction, key_lane, key.digest)
                    if first["fingerprint"] != fingerprint:
                        raise IdempotencyKeyReused(f"the key {key.name} was used with another body")
                    return _ids.decode(first["answer"])
            for lane, rows in lanes.items():
                await store.enqueue(transaction, lane, rows)
        return None

    def _tell(self, lanes: dict[int, list[NewJob]]) -> None:
        for lane, rows in lanes.items():
            self._floor.metrics.enqueued.inc(len(rows))
            ready = [row.job_type for row in rows if row.state == "ready"]
            if ready:
                self._signals.ready(lane, ready)
            for row in rows:
                if row.state == "scheduled":
                    self._signals.due(row.run_at)

    async def _as_it_is_now(self, job_id: UUID) -> Job:
        row = await store.find(self._floor.db, job_id)
        if row is None:
            raise NotFound(f"job {job_id} of this key is no longer kept")
        return row.told(await self._queues.name_of(row.lane))


def _check_all(items: Sequence[object]) -> None:
    refused = [item for item in items if isinstance(item, Problem)]
    if refused:
        raise _all_of(refused)


def _all_of(refused: Sequence[Problem]) -> Problem:
    """One problem for the whole batch, with a pointer for each bad item. Items that fail alike keep their own code."""
    faults = [fault for problem in refused for fault in problem.faults or [Fault("/jobs", problem.code, problem.detail)]]
    first = refused[0]
    if all(type(problem) is type(first) for problem in refused) and not isinstance(first, ValidationFailed):
        first.faults = faults
        return first
    return ValidationFailed(f"{len(refused)} of the jobs are not what we take; nothing was stored", faults=faults)


def _batch_result(index: int, item: NewJob | Problem, job_id: UUID | None, request_id: str) -> BatchResult:
    """What was refused when its key was first used stays refused, even if it would be taken now."""
    if job_id is not None:
        return BatchResult(index=index, status="created", job_id=job_id)
    problem = item if isinstance(item, Problem) else ValidationFailed.at(f"/jobs/{index}", "refused when this key was first used")
    return BatchResult(index=index, status="rejected", problem=details(problem, request_id))
