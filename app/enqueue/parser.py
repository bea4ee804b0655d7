"""Turns requested jobs into entries: decodes and checks each job and builds its row, or returns its problem. Stores nothing."""

import asyncio
from collections.abc import Callable, Container, Sequence
from datetime import datetime
from functools import cache, lru_cache, partial
from itertools import islice
from typing import TypeAlias
from uuid import UUID

import msgspec

from app.db.infrastructure import Infrastructure
from app.dependencies import graph
from app.enqueue import defaults
from app.enqueue.defaults import JobDefaults, Now, Trace
from app.enqueue.drafts import JobDraft
from app.errors import (
    MAX_FAULTS,
    BatchTooLarge,
    Fault,
    Forbidden,
    NotFound,
    Problem,
    QueueLimit,
    ValidationFailed,
    refuse,
)
from app.http.authorization import Access
from app.http.body_decoder import BodyDecoder
from app.http.request_body import LARGE
from app.http.schema_types import UNSET, Raw, value_or
from app.job_types.cache import JobTypeCache
from app.jobs.schemas import BatchJob, JobCreate, OnParentFailure, UnreadBatch
from app.jobs.store import to_array_text
from app.queues.cache import Queue, QueueCache
from app.queues.creator import Find
from app.slices import in_slices

_batch_job = BodyDecoder(BatchJob)
_batch_jobs = msgspec.json.Decoder(list[BatchJob])
_EMPTY = Raw(b"{}")
ParsedJob: TypeAlias = tuple[
    int | None, JobCreate, Queue, int
]  # the place of a job in the batch, the job, its queue and its lane
WaitsForParents: TypeAlias = Callable[[int, str | None], bool]


class JobParser:
    def __init__(self, infra: Infrastructure, queues: QueueCache, job_types: JobTypeCache) -> None:
        self._infra = infra
        self._queues = queues
        self._job_types = job_types
        self._rules = lru_cache(maxsize=1000)(
            partial(JobDefaults.of, settings=infra.settings)
        )  # what is configured anew is a new object

    def check(self, job: JobCreate, at: str = "") -> None:
        self._check(job, at, self._infra.now)

    def _check(self, job: JobCreate, at: str, now: Now) -> None:
        settings = self._infra.settings
        if job.payload is not UNSET:
            defaults.check_payload(job.payload, settings, at)
        faults, more = defaults.faults_of(job, settings, now, at), 0
        job_type = self._job_types.find(job.job_type)
        if job_type is not None:
            try:
                job_type.check(value_or(job.payload, _EMPTY), at)
            except ValidationFailed as refusal:
                faults += refusal.faults
                more = refusal.fault_count - len(refusal.faults)
        if faults:
            refuse(faults, more)

    def read(self, batch: UnreadBatch) -> list[BatchJob | Problem]:
        """Each job, or what is wrong with it. Nothing is written before all have been read, not even a queue."""
        most = self._infra.settings.max_batch_jobs
        if len(batch.jobs) > most:
            raise BatchTooLarge(f"{len(batch.jobs)} jobs, at most {most} are taken", most)
        if not batch.jobs:
            raise ValidationFailed.at("/jobs", "jobs must have at least one job")
        now, jobs = _stopped(self._infra.now()), _decoded(batch.jobs)
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

    async def entries(
        self, jobs: Sequence[BatchJob | Problem], find: Find, trace: Trace, *, atomic: bool
    ) -> list[JobDraft | Problem]:
        """In the order of the batch; a job may name one that stands behind it, so ids come first and parents second."""
        entries = self._entries(self._drafts(jobs, find), trace)
        if not any(isinstance(job, BatchJob) and (job.ref is not UNSET or job.depends_on is not UNSET) for job in jobs):
            return entries
        refs = await _refs(jobs, entries, atomic=atomic)
        async for index, (job, entry) in in_slices(enumerate(zip(jobs, [*entries], strict=True))):
            if isinstance(entry, JobDraft) and isinstance(job, BatchJob) and job.depends_on is not UNSET:
                try:
                    self._set_parents(entry, job, refs)
                except Problem as problem:
                    entries[index] = problem
        return entries

    def _drafts(self, jobs: Sequence[BatchJob | Problem], find: Find) -> list[ParsedJob | Problem]:
        """Each queue is asked for once, and its jobs that are in no group go to one lane together."""
        known: dict[str, tuple[Queue, int]] = {}
        drafts: list[ParsedJob | Problem] = []
        for index, job in enumerate(jobs):
            if isinstance(job, Problem):
                drafts.append(job)
                continue
            name = "default" if job.queue is UNSET else job.queue
            if name not in known:
                queue = _queue_or_problem(find, name, f"/jobs/{index}")
                if isinstance(queue, Problem):
                    drafts.append(queue)
                    continue
                known[name] = queue, defaults.choose_lane(queue, UNSET)
            queue, lane = known[name]
            drafts.append((index, job, queue, lane if job.group is UNSET else defaults.choose_lane(queue, job.group)))
        return drafts

    def _entries(self, drafts: Sequence[ParsedJob | Problem], trace: Trace) -> list[JobDraft | Problem]:
        """With one look at the clock, and one at who waits for a turn in a lane."""
        now, waits = _stopped(self._infra.now()), cache(self._queues.needs_admission)
        ids = iter(self._infra.job_ids.several([draft[3] for draft in drafts if isinstance(draft, tuple)]))
        return [
            self._entry(draft, next(ids), now, trace, waits) if isinstance(draft, tuple) else draft for draft in drafts
        ]

    def entry(self, job: JobCreate, find: Find, trace: Trace) -> JobDraft:
        """One that is alone, and can name no other by a ref."""
        queue = find(value_or(job.queue, "default"))
        lane = defaults.choose_lane(queue, job.group)
        draft, job_id = (None, job, queue, lane), self._infra.job_ids(lane)
        entry = self._entry(draft, job_id, self._infra.now, trace, self._queues.needs_admission)
        if job.depends_on is not UNSET:
            self._set_parents(entry, job, {})
        return entry

    def _entry(self, draft: ParsedJob, job_id: UUID, now: Now, trace: Trace, waits: WaitsForParents) -> JobDraft:
        index, job, queue, lane = draft
        row = defaults.new_job(job, job_id, self._rules(queue, self._job_types.find(job.job_type)), now, trace)
        if row.state == "ready" and waits(lane, row.group_key):
            row = row._replace(state="parked")
        return JobDraft(index, queue, lane, row, None if job.unique is UNSET else job.unique)

    def _set_parents(self, entry: JobDraft, job: JobCreate, refs: dict[str, UUID]) -> None:
        entry.parents = graph.resolve(value_or(job.depends_on, []), refs, entry.at)
        policy = value_or(job.on_parent_failure, OnParentFailure.CANCEL).value
        entry.row = entry.row._replace(
            depends_on=to_array_text(entry.parents), on_parent_failure=policy if entry.parents else None
        )


def _queue_or_problem(find: Find, name: str, at: str) -> Queue | Problem:
    """If a queue does not exist and cannot be created, only the jobs of that queue fail."""
    try:
        return find(name)
    except (NotFound, QueueLimit) as problem:
        problem.set_faults([Fault(f"{at}/queue", problem.code, problem.detail)])
        return problem


def reject_inaccessible_queues(jobs: list[BatchJob | Problem], access: Access) -> list[BatchJob | Problem]:
    """Replaces each job for a queue that the caller may not access by its problem. Checks each queue name once, as most callers may
    access all of them."""
    if access.everything or all(
        map(access.allows, {value_or(job.queue, "default") for job in jobs if isinstance(job, BatchJob)})
    ):
        return jobs
    return [_refused(index, job, access) or job for index, job in enumerate(jobs)]


def _refused(index: int, job: BatchJob | Problem, access: Access) -> Problem | None:
    if isinstance(job, Problem):
        return job
    try:
        access.check(value_or(job.queue, "default"), f"/jobs/{index}/queue")
    except Forbidden as refusal:
        return refusal
    return None


def _stopped(instant: datetime) -> Now:
    """For all jobs of a batch it is the same time."""
    return lambda: instant


def _decoded(jobs: Sequence[Raw]) -> list[BatchJob | Problem]:
    """Decodes the jobs in portions, because the decoder lets no other thread run in the meantime. If a job is invalid, decodes them one by
    one to find out which."""
    step = max(1, LARGE * len(jobs) // max(LARGE, len(b"".join(jobs))))
    portions = (jobs[start : start + step] for start in range(0, len(jobs), step))
    try:
        return [job for portion in portions for job in _batch_jobs.decode(b"[%b]" % b",".join(portion))]
    except msgspec.ValidationError:
        decoded: list[BatchJob | Problem] = []
        refused = 0
        for index, raw in enumerate(jobs):
            job = _decoded_alone(raw, f"/jobs/{index}", suggest=refused < MAX_FAULTS)
            refused += isinstance(job, Problem)
            decoded.append(job)
        return decoded


def _decoded_alone(raw: Raw, at: str, *, suggest: bool) -> BatchJob | Problem:
    try:
        return _batch_job.decode(raw, at, suggest=suggest)
    except Problem as problem:
        return problem


async def _refs(
    jobs: Sequence[BatchJob | Problem], entries: list[JobDraft | Problem], *, atomic: bool
) -> dict[str, UUID]:
    """Maps each ref to its id. A duplicate ref is an error of the second job. A cycle is an error of the whole batch if it is atomic,
    otherwise of the first job of the cycle."""
    refs: dict[str, UUID] = {}
    places: dict[str, int] = {}
    for index, (job, entry) in enumerate(zip(jobs, entries, strict=True)):
        if not isinstance(job, BatchJob) or not isinstance(entry, JobDraft) or job.ref is UNSET:
            continue
        if job.ref in refs:
            entries[index] = ValidationFailed.at(
                f"{entry.at}/ref", f"{job.ref} stands for another job already", "duplicate_ref"
            )
            continue
        refs[job.ref] = entry.row.id
        places[job.ref] = index
    parents = {ref: _parents_among(refs, jobs[index]) async for ref, index in in_slices(places.items())}
    found = await asyncio.to_thread(lambda: list(islice(graph.find_cycles(parents), 1 if atomic else None)))
    async for path in in_slices(found):
        problem = graph.cycle_problem(path, f"/jobs/{places[path[0]]}")
        if atomic:
            raise problem
        entries[places[path[0]]] = problem
        del refs[path[0]]
    return refs


def _parents_among(refs: Container[str], job: BatchJob | Problem) -> list[str]:
    return [name for name in value_or(job.depends_on, []) if name in refs] if isinstance(job, BatchJob) else []
