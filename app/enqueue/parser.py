"""Checks one requested job, and builds its row, its draft and its response.

Writes nothing to the database.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from uuid import UUID

import msgspec

from app.db.infrastructure import Infrastructure
from app.db.lanes import created_at
from app.dependencies import graph
from app.enqueue.drafts import JobDraft
from app.enqueue.schemas import JobCreate, OnParentFailure, Unique
from app.errors import Fault, ValidationFailed, raise_for_faults
from app.http.bodies import user_data_fault
from app.http.member_rules import rule_faults
from app.http.schema_types import UNSET, Raw, UnsetType, to_json_text, value_or
from app.http.strict_json import MAX_VALUES
from app.job_types.cache import JobType, JobTypeCache
from app.job_types.schemas import JobTypeConfig
from app.jobs.rows import NewJob, public_state, to_array_text
from app.jobs.schemas import Job
from app.jobs.validation import delay_fault, instant_fault, lease_fault, metadata_fault
from app.queues.cache import Queue, QueueCache
from app.queues.schemas import RetryPolicy
from app.settings import Settings

Trace = Mapping[str, str]
_RETRY_FIELDS = [field.name for field in msgspec.structs.fields(RetryPolicy)]


class JobParser:
    def __init__(self, *, infra: Infrastructure, queues: QueueCache, job_types: JobTypeCache) -> None:
        self._infra = infra
        self._queues = queues
        self._job_types = job_types
        # This cache needs no invalidation, because a changed queue or job type is a new object.
        self._defaults = lru_cache(maxsize=1000)(partial(JobDefaults.of, settings=infra.settings))

    def check(self, job: JobCreate, now: datetime, pointer: str = "") -> None:
        """Checks a job by the rules that the request model cannot express, and by its job type.

        Raises a Problem if the job is invalid. `pointer` is the JSON pointer to the job in the
        request: empty, or `/jobs/3`.
        """
        settings, payload = self._infra.settings, job.payload
        faults, unlisted = _find_faults(job, settings, now, pointer), 0
        # Most payloads need no check of their values: N values take at least N bytes, so a payload
        # with fewer bytes than MAX_VALUES cannot have too many values.
        if payload is not UNSET and (len(payload) >= MAX_VALUES or len(payload) > settings.max_payload_bytes):
            faults.append(user_data_fault(payload, settings.max_payload_bytes, f"{pointer}/payload"))
        job_type = self._job_types.find(job.job_type)
        if job_type is not None:
            try:
                job_type.check(payload, pointer)
            except ValidationFailed as problem:
                faults += problem.faults
                unlisted = problem.fault_count - len(problem.faults)
        if faults:
            raise_for_faults(faults, unlisted)

    def draft(self, job: JobCreate, queue: Queue, now: datetime, trace: Trace) -> JobDraft:
        """Builds the draft of a single job.

        Its `depends_on` must contain ids, because refs exist only in a batch.
        """
        group = None if job.group is UNSET else job.group
        lane = queue.choose_lane(group)
        needs_admission = self._queues.needs_admission(queue, lane, group)
        job_id = self._infra.job_ids.generate(lane, now)
        row = self.new_job(job, job_id, queue, now, trace, needs_admission=needs_admission)
        draft = JobDraft(None, queue, lane, row, None if job.unique is UNSET else job.unique)
        if job.depends_on is not UNSET:
            set_parents(draft, job, {})
        return draft

    def new_job(
        self, job: JobCreate, job_id: UUID, queue: Queue, now: datetime, trace: Trace, *, needs_admission: bool
    ) -> NewJob:
        """Builds the row of a new job, which is ready, pending or scheduled.

        `needs_admission` says whether the jobs of its group need an admission. If so, a job that is
        due is pending and not ready. The draft writer may change the state to blocked.

        Passes the fields by position, in the order of NewJob. Passing them by name takes 2 µs
        longer for each job of a batch.
        """
        job_defaults = self._defaults(queue, self._job_types.find(job.job_type))
        state, run_at = _initial_state(job, created_at(job_id), now)
        return NewJob(
            job_id,
            "pending" if needs_admission and state == "ready" else state,
            None,
            run_at,
            job_defaults.priority if job.priority is UNSET else job.priority,
            job_defaults.max_attempts if job.max_attempts is UNSET else job.max_attempts,
            job.job_type,
            None if job.group is UNSET else job.group,
            job_defaults.lease_seconds if job.lease_seconds is UNSET else job.lease_seconds,
            job_defaults.retry_of(job),
            None if job.tags is UNSET else to_json_text(job.tags),
            None if job.metadata is UNSET else to_json_text(job.metadata),
            trace.get("traceparent"),
            trace.get("tracestate"),
            None,
            "{}" if job.payload is UNSET else str(job.payload, "utf-8"),
            None if job.expires_at is UNSET else job.expires_at.astimezone(UTC),
            job_defaults.timeout_seconds if job.timeout_seconds is UNSET else job.timeout_seconds,
            None if job.unique is UNSET else job.unique.key,
        )


@dataclass(frozen=True, slots=True)
class JobDefaults:
    """Values for the fields that a job omits: from its job type, else its queue, else the settings.

    Built once for each pair of queue and job type, and shared by the jobs of the pair.
    """

    priority: int
    max_attempts: int
    lease_seconds: int | None  # None: `lease_seconds` of the claim applies, else the setting
    timeout_seconds: int | None
    retry: dict[str, float]
    retry_text: str | None

    @classmethod
    def of(cls, queue: Queue, job_type: JobType | None, settings: Settings) -> "JobDefaults":
        type_config, queue_config = job_type.config if job_type else JobTypeConfig(), queue.config
        retry = _encode_policy(queue_config.default_retry) | _encode_policy(job_type.retry if job_type else UNSET)
        attempts = job_type.max_attempts if job_type else UNSET
        return cls(
            priority=value_or(queue_config.default_priority, 0),
            max_attempts=value_or(attempts, value_or(queue_config.default_max_attempts, settings.default_max_attempts)),
            lease_seconds=value_or(type_config.lease_seconds, value_or(queue_config.default_lease_seconds, None)),
            timeout_seconds=value_or(type_config.timeout_seconds, None),
            retry=retry,
            retry_text=_json(retry),
        )

    def retry_of(self, job: JobCreate) -> str | None:
        """Returns the retry policy of the job as JSON, with defaults for the fields that it omits.

        For example, a job may set `base_seconds` and leave `max_seconds` to its queue.
        """
        return self.retry_text if job.retry is UNSET else _json(self.retry | _encode_policy(job.retry))


def _encode_policy(policy: RetryPolicy | UnsetType) -> dict[str, float]:
    return {name: getattr(policy, name) for name in _RETRY_FIELDS if getattr(policy, name, UNSET) is not UNSET}


def _json(fields: dict[str, float]) -> str | None:
    return msgspec.json.encode(fields).decode() if fields else None


def _initial_state(job: JobCreate, created: datetime, now: datetime) -> tuple[str, datetime]:
    """Returns the state of the new job, ready or scheduled, and its `run_at`."""
    if job.run_at is UNSET and job.delay_seconds is UNSET:
        return "ready", created
    # Ids only ascend, but the clock can be set back by a few milliseconds. So `now` can be earlier
    # than `created`, the time in the id.
    now = max(now, created)
    run_at = created if job.run_at is UNSET else job.run_at.astimezone(UTC)
    if job.delay_seconds is not UNSET and job.delay_seconds:
        run_at = now + timedelta(seconds=job.delay_seconds)
    return "scheduled" if run_at > now else "ready", run_at


def set_parents(draft: JobDraft, job: JobCreate, refs: Mapping[str, UUID]) -> None:
    """Resolves `depends_on` of a job to ids, and sets these as the parents of its draft.

    `refs` maps the refs of the same batch to the ids of their jobs.
    """
    if job.depends_on is UNSET:
        return
    draft.depend_on(graph.resolve(job.depends_on, refs, draft.pointer))
    policy = value_or(job.on_parent_failure, OnParentFailure.CANCEL).value
    draft.change_row(depends_on=to_array_text(draft.parents), on_parent_failure=policy if draft.parents else None)


def to_response(job: JobCreate, row: NewJob, queue: str) -> Job:
    """Builds the response for a job that was just stored, without reading it from the database."""
    return Job(
        id=row.id,
        queue=queue,
        job_type=row.job_type,
        payload=Raw(row.payload.encode()),
        state=public_state(row.state),
        state_reason=UNSET if row.reason is None else row.reason,
        priority=row.priority,
        attempt=0,
        max_attempts=row.max_attempts,
        crashes=0,
        deliveries=0,
        run_at=row.run_at,
        created_at=created_at(row.id),
        group=job.group,
        unique_key=UNSET if row.unique_key is None else row.unique_key,
        depends_on=[UUID(text) for text in row.depends_on[1:-1].split(",")] if row.depends_on else UNSET,
        tags=[] if job.tags is UNSET else job.tags,
        metadata={} if job.metadata is UNSET else job.metadata,
        replay_count=0,
    )


def _find_faults(job: JobCreate, settings: Settings, now: datetime, pointer: str) -> list[Fault | None]:
    """Finds faults that depend on several fields, on settings or on the clock.

    A schema cannot express these rules. Tests for each field first whether the job has it, because
    most jobs have none of these fields.
    """
    faults: list[Fault | None] = []
    if job.run_at is not UNSET:
        faults.append(instant_fault(job.run_at, settings, now, f"{pointer}/run_at"))
    if job.delay_seconds is not UNSET:
        faults.append(delay_fault(job.delay_seconds, settings, f"{pointer}/delay_seconds"))
    if job.lease_seconds is not UNSET:
        faults.append(lease_fault(job.lease_seconds, settings, f"{pointer}/lease_seconds"))
    if job.metadata is not UNSET:
        faults.append(metadata_fault(job.metadata, pointer))
    if job.expires_at is not UNSET:
        faults.append(instant_fault(job.expires_at, settings, now, f"{pointer}/expires_at"))
    if job.unique is not UNSET:
        faults += _unique_faults(job.unique, settings, pointer)
    if job.run_at is not UNSET or job.on_parent_failure is not UNSET or job.unique is not UNSET:
        faults += rule_faults(job, pointer)
    if job.depends_on is not UNSET and not pointer:
        faults += graph.id_faults(job.depends_on)
    return faults


def _unique_faults(unique: Unique, settings: Settings, pointer: str) -> Iterator[Fault | None]:
    if "\x00" in unique.key:
        yield Fault(f"{pointer}/unique/key", "invalid", "unique.key must not contain a NUL character")
    yield delay_fault(unique.for_seconds, settings, f"{pointer}/unique/for_seconds")
