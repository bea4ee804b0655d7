"""From what was sent to entries: each job read, checked, and given its row; or what is wrong with it. Stores nothing but new queues."""

from collections.abc import Sequence
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
from app.jobs.wanted import Rules, Trace
from app.queues.registry import Queue, Queues
from app.web.bodies import decode
from app.web.shapes import UNSET, Raw, given

_batch_job = msgspec.json.Decoder(BatchJob)
_EMPTY = Raw(b"{}")


class Reading:
    def __init__(self, floor: Floor, queues: Queues, job_types: JobTypes) -> None:
        self._floor = floor
        self._queues = queues
        self._job_types = job_types

    def check(self, job: JobCreate, at: str = "") -> None:
        wanted.check(job, self._floor.settings, self._floor.now(), at)
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
        return [self._read_one(raw, f"/jobs/{index}") for index, raw in enumerate(batch.jobs)]

    def _read_one(self, raw: Raw, at: str) -> BatchJob | Problem:
        try:
            job = decode(_batch_job, raw, at)
            self.check(job, at)
        except Problem as problem:
            return problem
        return job

    async def entries(self, jobs: Sequence[BatchJob | Problem], trace: Trace, *, atomic: bool) -> list[Entry | Problem]:
        """In the order of the batch; a job may name one that stands behind it, so ids come first and parents second."""
        entries: list[Entry | Problem] = [await self._entry_or_problem(job, trace, f"/jobs/{index}") for index, job in enumerate(jobs)]
        refs = _refs(jobs, entries, atomic=atomic)
        for index, (job, entry) in enumerate(zip(jobs, entries, strict=True)):
            if isinstance(entry, Entry) and isinstance(job, BatchJob) and job.depends_on is not UNSET:
                try:
                    self._set_parents(entry, job, refs)
                except Problem as problem:
                    entries[index] = problem
        return entries

    async def _entry_or_problem(self, job: BatchJob | Problem, trace: Trace, at: str) -> Entry | Problem:
        """A queue that does not exist and may not be made is the fault of its job alone."""
        if isinstance(job, Problem):
            return job
        try:
            return await self.entry(job, trace, at, None)
        except (NotFound, QueueLimit) as problem:
            problem.faults = [Fault(f"{at}/queue", problem.code, problem.detail)]
            return problem

    async def entry(self, job: JobCreate, trace: Trace, at: str, refs: dict[str, UUID] | None) -> Entry:
        queue = await self._queues.get_or_create(given(job.queue, "default"))
        lane = wanted.choose_lane(queue, job.group)
        row = wanted.new_job(job, lane, self._rules(queue, job), self._floor, trace)
        if row.state == "ready" and self._queues.waits_for_turn(lane, row.group_key):
            row = row._replace(state="parked")
        entry = Entry(at, queue, row, given(job.unique, None))
        if refs is not None and job.depends_on is not UNSET:
            self._set_parents(entry, job, refs)
        return entry

    def _rules(self, queue: Queue, job: JobCreate) -> Rules:
        return Rules(queue, self._job_types.find(job.job_type), self._floor.settings)

    def _set_parents(self, entry: Entry, job: JobCreate, refs: dict[str, UUID]) -> None:
        entry.parents = graph.resolve(given(job.depends_on, []), refs, entry.at)
        policy = given(job.on_parent_failure, OnParentFailure.CANCEL).value
        entry.row = entry.row._replace(depends_on=array_of(entry.parents), on_parent_failure=policy if entry.parents else None)


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
