"""From what a producer sent to the row that is stored: defaults, due time, lane, and the checks that a schema cannot make."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec

from app.db.floor import Floor
from app.db.lanes import created_at, digest, lane_of_group
from app.errors import Fault, ValidationFailed
from app.job_types.registry import JobType
from app.jobs.schemas import Job, JobCreate, OnDuplicate
from app.jobs.store import NewJob, metadata_of, tags_of, told_state
from app.queues.registry import Queue
from app.queues.schemas import RetryPolicy
from app.settings import Settings
from app.web.bodies import check_user_data
from app.web.shapes import UNSET, Raw, UnsetType, encoded, given, or_unset, text_of

MAX_METADATA_BYTES = 16 * 1024
Trace = Mapping[str, str]
_RETRY = [field.name for field in msgspec.structs.fields(RetryPolicy)]

_FIRST_INSTANT = datetime.min.replace(tzinfo=UTC)


def check(job: JobCreate, settings: Settings, now: datetime, at: str = "") -> None:
    """`at` is the pointer to the job in the request: empty, or `/jobs/3`."""
    check_user_data(job.payload, settings.max_payload_bytes, f"{at}/payload")
    if job.run_at is not UNSET and job.delay_seconds is not UNSET:
        raise ValidationFailed.at(f"{at}/delay_seconds", "either run_at or delay_seconds, not both")
    if isinstance(job.run_at, datetime):
        check_horizon(job.run_at, settings, now, f"{at}/run_at")
    check_delay(job.delay_seconds, settings, f"{at}/delay_seconds")
    check_lease(job.lease_seconds, settings, f"{at}/lease_seconds")
    check_metadata(job.metadata, at)
    if isinstance(job.expires_at, datetime):
        check_horizon(job.expires_at, settings, now, f"{at}/expires_at")
    if job.on_parent_failure is not UNSET and job.depends_on is UNSET:
        raise ValidationFailed.at(f"{at}/on_parent_failure", "says what to do with depends_on, and there is none")
    _check_unique(job, settings, at)


def _check_unique(job: JobCreate, settings: Settings, at: str) -> None:
    if job.unique is UNSET:
        return
    if "\x00" in job.unique.key:
        raise ValidationFailed.at(f"{at}/unique/key", "a NUL character")
    check_delay(job.unique.for_seconds, settings, f"{at}/unique/for_seconds")
    if job.unique.on_duplicate is OnDuplicate.REPLACE and job.depends_on is not UNSET:
        raise ValidationFailed.at(f"{at}/unique/on_duplicate", "a job that is replaced keeps what it waits for: not with depends_on")


def check_lease(seconds: int | UnsetType, settings: Settings, pointer: str) -> None:
    if isinstance(seconds, int) and not settings.min_lease_seconds <= seconds <= settings.max_lease_seconds:
        raise ValidationFailed.at(pointer, f"{settings.min_lease_seconds} to {settings.max_lease_seconds}")


def check_delay(seconds: int | UnsetType, settings: Settings, pointer: str) -> None:
    if isinstance(seconds, int) and seconds > settings.max_delay_seconds:
        raise ValidationFailed.at(pointer, f"at most {settings.max_delay_seconds}")


def check_horizon(instant: datetime, settings: Settings, now: datetime, pointer: str) -> None:
    if instant > now + timedelta(seconds=settings.max_delay_seconds):
        raise ValidationFailed.at(pointer, f"more than {settings.max_delay_seconds} seconds ahead")
    if instant < _FIRST_INSTANT:
        raise ValidationFailed.at(pointer, "before the year 1 in UTC")


def check_metadata(metadata: dict[str, Raw] | UnsetType, at: str) -> None:
    if metadata is not UNSET and len(msgspec.json.encode(metadata)) > MAX_METADATA_BYTES:
        raise ValidationFailed(
            "metadata is too large", faults=[Fault(f"{at}/metadata", "too_large", f"at most {MAX_METADATA_BYTES} bytes")]
        )


def choose_lane(queue: Queue, group: str | UnsetType) -> int:
    """Only the group chooses a lane; other jobs go anywhere."""
    if isinstance(group, str):
        return queue.all_lanes[lane_of_group(group, queue.row.group_lanes)]
    return queue.all_lanes[random.randrange(queue.lanes)]


@dataclass(frozen=True, slots=True)
class Rules:
    """What others have laid down for a job: its queue, its type, the settings. The job's own word comes first, then they in this order:
    job type, queue, settings."""

    queue: Queue
    job_type: JobType | None
    settings: Settings

    def priority(self, job: JobCreate) -> int:
        return given(job.priority, given(self.queue.config.default_priority, 0))

    def max_attempts(self, job: JobCreate) -> int:
        own = given(job.max_attempts, self.job_type.max_attempts if self.job_type else None)
        return own or given(self.queue.config.default_max_attempts, self.settings.default_max_attempts)

    def lease_seconds(self, job: JobCreate) -> int | None:
        """None: the settings' lease, or what a claim asks for."""
        own = given(job.lease_seconds, given(self.job_type.config.lease_seconds, None) if self.job_type else None)
        return own or given(self.queue.config.default_lease_seconds, None)

    def timeout_seconds(self, job: JobCreate) -> int | None:
        return given(job.timeout_seconds, given(self.job_type.config.timeout_seconds, None) if self.job_type else None)

    def retry(self, job: JobCreate) -> str | None:
        """Field by field: a job may set its base and leave the cap to its queue."""
        told: dict[str, float] = {}
        for policy in (self.queue.config.default_retry, self.job_type.retry if self.job_type else UNSET, job.retry):
            told |= {name: getattr(policy, name) for name in _RETRY if getattr(policy, name, UNSET) is not UNSET}
        return msgspec.json.encode(told).decode() if told else None


def new_job(job: JobCreate, lane: int, rules: Rules, floor: Floor, trace: Trace) -> NewJob:
    """A job that nothing holds back: who waits for a turn or for other jobs is told so by `intake`."""
    job_id = floor.mint(lane)
    now = max(floor.now(), created_at(job_id))  # ids never go back, the clock may by some milliseconds when it is set right
    run_at = _run_at(job, created_at(job_id), now)
    unique = given(job.unique, None)
    return NewJob(
        id=job_id,
        state="scheduled" if run_at > now else "ready",
        reason=None,
        run_at=run_at,
        priority=rules.priority(job),
        max_attempts=rules.max_attempts(job),
        job_type=job.job_type,
        group_key=given(job.group, None),
        lease_seconds=rules.lease_seconds(job),
        retry=rules.retry(job),
        tags=encoded(job.tags),
        metadata=encoded(job.metadata),
        traceparent=trace.get("traceparent"),
        tracestate=trace.get("tracestate"),
        replayed_from=None,
        payload=text_of(job.payload) or "{}",
        expires_at=job.expires_at.astimezone(UTC) if isinstance(job.expires_at, datetime) else None,
        timeout_seconds=rules.timeout_seconds(job),
        unique_key=unique.key if unique else None,
    )


def _run_at(job: JobCreate, created: datetime, now: datetime) -> datetime:
    if isinstance(job.run_at, datetime):
        return job.run_at.astimezone(UTC)
    if isinstance(job.delay_seconds, int) and job.delay_seconds:
        return now + timedelta(seconds=job.delay_seconds)
    return created


def told(job: NewJob, queue: str) -> Job:
    """The job as it was just stored, without asking the database for it."""
    return Job(
        id=job.id,
        queue=queue,
        job_type=job.job_type,
        payload=Raw(job.payload.encode()),
        state=told_state(job.state),
        state_reason=or_unset(job.reason),
        priority=job.priority,
        attempt=0,
        max_attempts=job.max_attempts,
        crashes=0,
        deliveries=0,
        run_at=job.run_at,
        created_at=created_at(job.id),
        group=or_unset(job.group_key),
        unique_key=or_unset(job.unique_key),
        schedule=or_unset(job.schedule),
        depends_on=[UUID(text) for text in job.depends_on[1:-1].split(",")] if job.depends_on else UNSET,
        tags=tags_of(job.tags),
        metadata=metadata_of(job.metadata),
        replay_count=0,
    )


def fingerprint_of(body: object) -> UUID:
    """Equal for bodies that mean the same, so that a client may order its keys anew when it repeats a call."""
    meaning = msgspec.json.decode(msgspec.json.encode(body))
    return digest(msgspec.json.encode(meaning, order="sorted").decode())
