"""From what a producer sent to the row that is stored: defaults, due time, lane, and the checks that a schema cannot make."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec

from app.db.lanes import created_at, digest, lane_of_group
from app.errors import Fault
from app.http.body_errors import named
from app.http.instants import RANGE, is_accepted
from app.http.request_body import check_user_data
from app.http.schema_types import UNSET, Raw, UnsetType, encoded, unset_if_none, value_or
from app.http.strict_json import MAX_NODES
from app.job_types.cache import JobType
from app.job_types.schemas import JobTypeConfig
from app.jobs.schemas import Job, JobCreate, OnDuplicate, Unique
from app.jobs.store import NewJob, metadata_of, public_state, tags_of
from app.queues.cache import Queue
from app.queues.schemas import RetryPolicy
from app.settings import Settings

MAX_METADATA_BYTES = 16 * 1024
Trace = Mapping[str, str]
Now = Callable[[], datetime]  # few jobs ask for it
_RETRY = [field.name for field in msgspec.structs.fields(RetryPolicy)]


def faults_of(job: JobCreate, settings: Settings, now: Now, at: str) -> list[Fault | None]:
    """`at` is the pointer to the job in the request: empty, or `/jobs/3`. Most jobs have no field that is checked here."""
    faults: list[Fault | None] = []
    if job.run_at is not UNSET:
        if job.delay_seconds is not UNSET:
            faults.append(Fault(f"{at}/delay_seconds", "invalid", "send either run_at or delay_seconds, not both"))
        faults.append(instant_fault(job.run_at, settings, now(), f"{at}/run_at"))
    if job.delay_seconds is not UNSET:
        faults.append(delay_fault(job.delay_seconds, settings, f"{at}/delay_seconds"))
    if job.lease_seconds is not UNSET:
        faults.append(lease_fault(job.lease_seconds, settings, f"{at}/lease_seconds"))
    if job.metadata is not UNSET:
        faults.append(metadata_fault(job.metadata, at))
    if job.expires_at is not UNSET:
        faults.append(instant_fault(job.expires_at, settings, now(), f"{at}/expires_at"))
    if job.on_parent_failure is not UNSET and job.depends_on is UNSET:
        faults.append(Fault(f"{at}/on_parent_failure", "invalid", "on_parent_failure needs depends_on"))
    if job.unique is not UNSET:
        faults += _unique_faults(job, job.unique, settings, at)
    return faults


def check_payload(payload: Raw, settings: Settings, at: str) -> None:
    """Most are so short that no cap can be below them."""
    size = len(bytes(payload))
    if size >= MAX_NODES or size > settings.max_payload_bytes:
        check_user_data(payload, settings.max_payload_bytes, f"{at}/payload")


def _unique_faults(job: JobCreate, unique: Unique, settings: Settings, at: str) -> Iterator[Fault | None]:
    if "\x00" in unique.key:
        yield Fault(f"{at}/unique/key", "invalid", "unique.key must not contain a NUL character")
    yield delay_fault(unique.for_seconds, settings, f"{at}/unique/for_seconds")
    if unique.on_duplicate is OnDuplicate.REPLACE and job.depends_on is not UNSET:
        detail = "on_duplicate replace cannot be used with depends_on: a replaced job keeps its dependencies"
        yield Fault(f"{at}/unique/on_duplicate", "invalid", detail)


def lease_fault(seconds: int | UnsetType, settings: Settings, pointer: str) -> Fault | None:
    if isinstance(seconds, UnsetType) or settings.min_lease_seconds <= seconds <= settings.max_lease_seconds:
        return None
    detail = f"{named(pointer)} must be from {settings.min_lease_seconds} to {settings.max_lease_seconds}"
    return Fault(pointer, "invalid", detail)


def delay_fault(seconds: int | UnsetType, settings: Settings, pointer: str) -> Fault | None:
    if isinstance(seconds, UnsetType) or seconds <= settings.max_delay_seconds:
        return None
    return Fault(pointer, "invalid", f"{named(pointer)} must be at most {settings.max_delay_seconds}")


def instant_fault(instant: datetime, settings: Settings, now: datetime, pointer: str) -> Fault | None:
    """A batch is decoded without a check of its instants, so the range is checked here too."""
    if not is_accepted(instant):
        return Fault(pointer, "invalid", f"{named(pointer)} must be {RANGE}")
    if instant > now + timedelta(seconds=settings.max_delay_seconds):
        return Fault(pointer, "invalid", f"{named(pointer)} must be at most {settings.max_delay_seconds} seconds ahead")
    return None


def metadata_fault(metadata: dict[str, Raw] | UnsetType, at: str) -> Fault | None:
    if isinstance(metadata, UnsetType) or len(msgspec.json.encode(metadata)) <= MAX_METADATA_BYTES:
        return None
    return Fault(f"{at}/metadata", "too_large", f"metadata must have at most {MAX_METADATA_BYTES} bytes")


def choose_lane(queue: Queue, group: str | UnsetType) -> int:
    """Only the group chooses a lane; other jobs go anywhere."""
    if isinstance(group, str):
        return queue.all_lanes[lane_of_group(group, queue.row.group_lanes)]
    return queue.all_lanes[random.randrange(queue.lanes) if queue.lanes > 1 else 0]


@dataclass(frozen=True, slots=True)
class JobDefaults:
    """What a job is that does not say it: as its job type has it, or else its queue, or else the settings. Worked out once for many."""

    priority: int
    max_attempts: int
    lease_seconds: int | None  # None: the settings' lease, or what a claim asks for
    timeout_seconds: int | None
    retry: dict[str, float]
    retry_text: str | None

    @classmethod
    def of(cls, queue: Queue, job_type: JobType | None, settings: Settings) -> "JobDefaults":
        own, theirs = job_type.config if job_type else JobTypeConfig(), queue.config
        retry = _encode_policy(theirs.default_retry) | _encode_policy(job_type.retry if job_type else UNSET)
        attempts = job_type.max_attempts if job_type else UNSET
        return cls(
            priority=value_or(theirs.default_priority, 0),
            max_attempts=value_or(attempts, value_or(theirs.default_max_attempts, settings.default_max_attempts)),
            lease_seconds=value_or(own.lease_seconds, value_or(theirs.default_lease_seconds, None)),
            timeout_seconds=value_or(own.timeout_seconds, None),
            retry=retry,
            retry_text=_json(retry),
        )

    def retry_of(self, job: JobCreate) -> str | None:
        """Field by field: a job may set its base and leave the cap to its queue."""
        return self.retry_text if job.retry is UNSET else _json(self.retry | _encode_policy(job.retry))


def _encode_policy(policy: RetryPolicy | UnsetType) -> dict[str, float]:
    return {name: getattr(policy, name) for name in _RETRY if getattr(policy, name, UNSET) is not UNSET}


def _json(fields: dict[str, float]) -> str | None:
    return msgspec.json.encode(fields).decode() if fields else None


def new_job(job: JobCreate, job_id: UUID, rules: JobDefaults, now: Now, trace: Trace) -> NewJob:
    """A job that nothing holds back: who waits for a turn or for other jobs is told so by `intake`. The fields in the order of NewJob:
    by name they would take 2 µs longer, and this is done for each job of a batch."""
    state, run_at = _due(job, created_at(job_id), now)
    return NewJob(
        job_id,
        state,
        None,
        run_at,
        rules.priority if job.priority is UNSET else job.priority,
        rules.max_attempts if job.max_attempts is UNSET else job.max_attempts,
        job.job_type,
        None if job.group is UNSET else job.group,
        rules.lease_seconds if job.lease_seconds is UNSET else job.lease_seconds,
        rules.retry_of(job),
        None if job.tags is UNSET else encoded(job.tags),
        None if job.metadata is UNSET else encoded(job.metadata),
        trace.get("traceparent"),
        trace.get("tracestate"),
        None,
        "{}" if job.payload is UNSET else bytes(job.payload).decode(),
        None if job.expires_at is UNSET else job.expires_at.astimezone(UTC),
        rules.timeout_seconds if job.timeout_seconds is UNSET else job.timeout_seconds,
        None if job.unique is UNSET else job.unique.key,
    )


def _due(job: JobCreate, created: datetime, clock: Now) -> tuple[str, datetime]:
    if job.run_at is UNSET and job.delay_seconds is UNSET:
        return "ready", created
    now = max(clock(), created)  # ids never go back, the clock may by some milliseconds when it is set right
    run_at = created if job.run_at is UNSET else job.run_at.astimezone(UTC)
    if job.delay_seconds is not UNSET and job.delay_seconds:
        run_at = now + timedelta(seconds=job.delay_seconds)
    return "scheduled" if run_at > now else "ready", run_at


def to_response(job: NewJob, queue: str) -> Job:
    """The job as it was just stored, without asking the database for it."""
    return Job(
        id=job.id,
        queue=queue,
        job_type=job.job_type,
        payload=Raw(job.payload.encode()),
        state=public_state(job.state),
        state_reason=unset_if_none(job.reason),
        priority=job.priority,
        attempt=0,
        max_attempts=job.max_attempts,
        crashes=0,
        deliveries=0,
        run_at=job.run_at,
        created_at=created_at(job.id),
        group=unset_if_none(job.group_key),
        unique_key=unset_if_none(job.unique_key),
        schedule=unset_if_none(job.schedule),
        depends_on=[UUID(text) for text in job.depends_on[1:-1].split(",")] if job.depends_on else UNSET,
        tags=tags_of(job.tags),
        metadata=metadata_of(job.metadata),
        replay_count=0,
    )


def body_fingerprint(body: object) -> UUID:
    """Equal for bodies that mean the same, so that a client may order its keys anew when it repeats a call."""
    meaning = msgspec.json.decode(msgspec.json.encode(body))
    return digest(msgspec.json.encode(meaning, order="sorted").decode())
