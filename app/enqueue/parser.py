"""Checks one requested job, and builds its row or its draft. Writes nothing."""

from datetime import datetime
from functools import lru_cache, partial
from uuid import UUID

from app.db.infrastructure import Infrastructure
from app.dependencies import graph
from app.enqueue import defaults, validation
from app.enqueue.defaults import JobDefaults, Trace
from app.enqueue.drafts import JobDraft
from app.enqueue.schemas import JobCreate, OnParentFailure
from app.errors import ValidationFailed, raise_for_faults
from app.http.schema_types import UNSET, Raw, value_or
from app.job_types.cache import JobTypeCache
from app.jobs.rows import NewJob, to_array_text
from app.queues.cache import Queue, QueueCache

_EMPTY = Raw(b"{}")


class JobParser:
    def __init__(self, *, infra: Infrastructure, queues: QueueCache, job_types: JobTypeCache) -> None:
        self._infra = infra
        self._queues = queues
        self._job_types = job_types
        # Needs no invalidation: a changed queue or job type is a new object.
        self._defaults = lru_cache(maxsize=1000)(partial(JobDefaults.of, settings=infra.settings))

    def check(self, job: JobCreate, now: datetime, pointer: str = "") -> None:
        settings = self._infra.settings
        if job.payload is not UNSET:
            validation.check_payload(job.payload, settings, pointer)
        faults, more = validation.find_faults(job, settings, now, pointer), 0
        job_type = self._job_types.find(job.job_type)
        if job_type is not None:
            try:
                job_type.check(value_or(job.payload, _EMPTY), pointer)
            except ValidationFailed as problem:
                faults += problem.faults
                more = problem.fault_count - len(problem.faults)
        if faults:
            raise_for_faults(faults, more)

    def row(self, job: JobCreate, job_id: UUID, queue: Queue, now: datetime, trace: Trace, *, held: bool) -> NewJob:
        """`held`: the group of the job needs an admission."""
        row = defaults.new_job(job, job_id, self._defaults(queue, self._job_types.find(job.job_type)), now, trace)
        return row._replace(state="pending") if held and row.state == "ready" else row

    def draft(self, job: JobCreate, queue: Queue, now: datetime, trace: Trace) -> JobDraft:
        """The draft of a single job. Its parents are ids, because refs exist only in a batch."""
        group = None if job.group is UNSET else job.group
        lane = queue.choose_lane(group)
        held = self._queues.needs_admission(queue, lane, group)
        row = self.row(job, self._infra.job_ids.generate(lane, now), queue, now, trace, held=held)
        draft = JobDraft(None, queue, lane, row, None if job.unique is UNSET else job.unique)
        set_parents(draft, job, {})
        return draft


def is_plain(job: JobCreate) -> bool:
    """Whether the job can be inserted without reading others: no unique key, no parents."""
    return job.unique is UNSET and job.depends_on is UNSET


def set_parents(draft: JobDraft, job: JobCreate, refs: dict[str, UUID]) -> None:
    """Resolves `depends_on`. `refs` has the ids of the jobs of the same batch."""
    if job.depends_on is UNSET:
        return
    draft.depend_on(graph.resolve(job.depends_on, refs, draft.pointer))
    policy = value_or(job.on_parent_failure, OnParentFailure.CANCEL).value
    draft.change_row(depends_on=to_array_text(draft.parents), on_parent_failure=policy if draft.parents else None)
