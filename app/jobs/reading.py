"""From what was sent to entries: each job read, checked, and given its row; or what is wrong with it. Stores nothing but new queues."""

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache, lru_cache, partial
from typing import TypeAlias
from uuid import UUID

import msgspec

from app.db.floor import Floor
from app.dependencies import graph
from app.errors import BatchTooLarge, Fault, NotFound, Problem, QueueLimit, ValidationFailed
from app.job_types.registry import JobTypes
from app.jobs import wanted
from app.jobs.entries import Entry
from app.jobs.schemas import BatchJob, JobCreate, OnParentFailure, UnreadBatch
from app.jobs.store import array_of
from app.jobs.wanted import Now, Rules, Trace
from app.queues.registry import Queue, Queues
from app.web.bodies import decode
from app.web.shapes import UNSET, Raw, given

_batch_job = msgspec.json.Decoder(BatchJob)
_batch_jobs = msgspec.json.Decoder(list[BatchJob])
_EMPTY = Raw(b"{}")
Draft: TypeAlias = tuple[int | None, JobCreate, Queue, int]  # the place of a job in the batch, the job, its queue and its lane
Waits: TypeAlias = Callable[[int, str | None], bool]


class Reading:
    def __init__(self, floor: Floor, queues: Queues, job_types: JobTypes) -> None:
        self._floor = floor
        self._queues = queues
        self._job_types = job_types
        self._rules = lru_cache(maxsize=1000)(partial(Rules.of, settings=floor.settings))  # what is configured anew is a new object

    def check(self, job: JobCreate, at: str = "") -> None:
        self._check(job, at, self._floor.now)

    def _check(self, job: JobCreate, at: str, now: Now) -> None:
        wanted.check(job, self._floor.settings, now, at)
        job_type = self._job_types.find(job.job_type)
        if job_type is not None:
            job_type.check(given(job.payload, _EMPTY), at)

    def read(self, batch: UnreadBatch) -> list[BatchJob | Problem]:
        """Each job, or what is wrong with it. Nothing is written before all have been read, not even a queue."""
        most = self._floor.settings.max_batch_jobs
        if len(batch.jobs) > most:
            raise BatchTooLarge(f"{len(batch.jobs)} jobs, at most {most} are taken", most)
        if not batch.jobs:
            raise ValidationFailed.at("/jobs", "at least one job")
        now, jobs = _stopped(self._floor.now()), _decoded(batch.jobs)
        for index, job in enumerate(jobs):
            if not isinstance(job, Problem) and self._refusal(job, "", now):
                jobs[index] = self._refusal(job, f"/jobs/{index}", now) or job  # the others need no pointer
        return jobs

    def _refusal(self, job: BatchJob, at: str, now: Now) -> Problem | None:
        try:
            self._check(job, at, now)
        except Problem as problem:
            return problem
        return None

    async def entries(self, jobs: Sequence[BatchJob | Problem], trace: Trace, *, atomic: bool) -> list[Entry | Problem]:
        """In the order of the batch; a job may name one that stands behind it, so ids come first and parents second."""
        entries = self._entries(await self._drafts(jobs), trace)
        if not any(isinstance(job, BatchJob) and (job.ref is not UNSET or job.depends_on is not UNSET) for job in jobs):
            return entries
        refs = _refs(jobs, entries, atomic=atomic)
        for index, (job, entry) in enumerate(zip(jobs, entries, strict=True)):
            if isinstance(entry, Entry) and isinstance(job, BatchJob) and job.depends_on is not UNSET:
                try:
                    self._set_parents(entry, job, refs)
                except Problem as problem:
                    entries[index] = problem
        return entries

    async def _drafts(self, jobs: Sequence[BatchJob | Problem]) -> list[Draft | Problem]:
        """Each queue is asked for once, and its jobs that are in no group go to one lane together."""
        known: dict[str, tuple[Queue, int]] = {}
        drafts: list[Draft | Problem] = []
        for index, job in enumerate(jobs):
            if isinstance(job, Problem):
                drafts.append(job)
                continue
            name = "default" if job.queue is UNSET else job.queue
            if name not in known:
                queue = await self._queue_or_problem(name, f"/jobs/{index}")
                if isinstance(queue, Problem):
                    drafts.append(queue)
                    continue
                known[name] = queue, wanted.choose_lane(queue, UNSET)
            queue, lane = known[name]
            drafts.append((index, job, queue, lane if job.group is UNSET else wanted.choose_lane(queue, job.group)))
        return drafts

    async def _queue_or_problem(self, name: str, at: str) -> Queue | Problem:
        """A queue that does not exist and may not be made is the fault of its job alone."""
        try:
            return await self._queues.get_or_create(name)
        except (NotFound, QueueLimit) as problem:
            problem.faults = [Fault(f"{at}/queue", problem.code, problem.detail)]
            return problem

    def _entries(self, drafts: Sequence[Draft | Problem], trace: Trace) -> list[Entry | Problem]:
        """With one look at the clock, and one at who waits for a turn in a lane."""
        now, waits = _stopped(self._floor.now()), cache(self._queues.waits_for_turn)
        ids = iter(self._floor.mint.several([draft[3] for draft in drafts if isinstance(draft, tuple)]))
        return [self._entry(draft, next(ids), now, trace, waits) if isinstance(draft, tuple) else draft for draft in drafts]

    async def entry(self, job: JobCreate, trace: Trace) -> Entry:
        """One that is alone, and can name no other by a ref."""
        queue = await self._queues.get_or_create(given(job.queue, "default"))
        lane = wanted.choose_lane(queue, job.group)
        draft, job_id = (None, job, queue, lane), self._floor.mint(lane)
        entry = self._entry(draft, job_id, self._floor.now, trace, self._queues.waits_for_turn)
        if job.depends_on is not UNSET:
            self._set_parents(entry, job, {})
        return entry

    def _entry(self, draft: Draft, job_id: UUID, now: Now, trace: Trace, waits: Waits) -> Entry:
        index, job, queue, lane = draft
        row = wanted.new_job(job, job_id, self._rules(queue, self._job_types.find(job.job_type)), now, trace)
        if row.state == "ready" and waits(lane, row.group_key):
            row = row._replace(state="parked")
        return Entry(index, queue, lane, row, None if job.unique is UNSET else job.unique)

    def _set_parents(self, entry: Entry, job: JobCreate, refs: dict[str, UUID]) -> None:
        entry.parents = graph.resolve(given(job.depends_on, []), refs, entry.at)
        policy = given(job.on_parent_failure, OnParentFailure.CANCEL).value
        entry.row = entry.row._replace(depends_on=array_of(entry.parents), on_parent_failure=policy if entry.parents else None)


def _stopped(instant: datetime) -> Now:
    """For all jobs of a batch it is the same time."""
    return lambda: instant


def _decoded(jobs: Sequence[Raw]) -> list[BatchJob | Problem]:
    """All at once; only if one of them is not what we take one by one, to say which."""
    try:
        return [*_batch_jobs.decode(b"[%b]" % b",".join(jobs))]
    except msgspec.DecodeError:
        return [_decoded_alone(raw, f"/jobs/{index}") for index, raw in enumerate(jobs)]


def _decoded_alone(raw: Raw, at: str) -> BatchJob | Problem:
    try:
        return decode(_batch_job, raw, at)
    except Problem as problem:
        return problem


def _refs(jobs: Sequence[BatchJob | Problem], entries: list[Entry | Problem], *, atomic: bool) -> dict[str, UUID]:
    """The id behind each ref. A ref that is given twice is the fault of the second; a cycle is that of the batch, or of who is in it."""
    refs: dict[str, UUID] = {}
    places: dict[str, int] = {}
    parents: dict[str, list[str]] = {}
    pointers: dict[str, str] = {}
    for index, (job, entry) in enumerate(zip(jobs, entries, strict=True)):
        if not isinstance(job, BatchJob) or not isinstance(entry, Entry) or job.ref is UNSET:
            continue
        if job.ref in refs:
            entries[index] = ValidationFailed.at(f"{entry.at}/ref", f"{job.ref} stands for another job already", "duplicate_ref")
            continue
        refs[job.ref] = entry.row.id
        places[job.ref] = index
        pointers[job.ref] = entry.at
        parents[job.ref] = given(job.depends_on, [])
    while True:
        try:
            graph.check_no_cycle({ref: [name for name in parents[ref] if name in refs] for ref in refs}, pointers)
        except ValidationFailed as circle:
            if atomic:
                raise
            first = next(ref for ref in refs if f"{pointers[ref]}/depends_on" == circle.faults[0].pointer)
            entries[places[first]] = circle
            del refs[first]
        else:
            return refs
