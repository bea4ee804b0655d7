"""From what a producer sent to the row that is stored: defaults, due time, lane, and the checks that a schema cannot make."""

import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec

from app.db.floor import Floor
from app.db.lanes import created_at, digest, lanes_of, spread
from app.errors import Fault, ValidationFailed
from app.jobs.schemas import Job, JobCreate
from app.jobs.store import NewJob, metadata_of, tags_of
from app.queues.registry import Queue
from app.settings import Settings
from app.web.bodies import check_user_data
from app.web.shapes import UNSET, Raw, UnsetType, encoded, given, or_unset, text_of

MAX_METADATA_BYTES = 16 * 1024
Trace = Mapping[str, str]

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
    lanes = lanes_of(queue.id, queue.lanes)
    if isinstance(group, str):
        return lanes[spread(digest(group), queue.lanes)]
    return lanes[random.randrange(queue.lanes)]


def new_job(job: JobCreate, lane: int, floor: Floor, trace: Trace) -> NewJob:
    job_id = floor.mint(lane)
    settings = floor.settings
    now = max(floor.now(), created_at(job_id))  # ids never go back, the clock may by some milliseconds when it is set right
    run_at = _run_at(job, created_at(job_id), now)
    return NewJob(
        id=job_id,
        state="scheduled" if run_at > now else "ready",
        run_at=run_at,
        priority=given(job.priority, 0),
        max_attempts=given(job.max_attempts, settings.default_max_attempts),
        job_type=job.job_type,
        group_key=given(job.group, None),
        lease_seconds=given(job.lease_seconds, None),
        retry=encoded(job.retry),
        tags=encoded(job.tags),
        metadata=encoded(job.metadata),
        traceparent=trace.get("traceparent"),
        tracestate=trace.get("tracestate"),
        replayed_from=None,
        payload=text_of(job.payload) or "{}",
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
        state=job.state,
        priority=job.priority,
        attempt=0,
        max_attempts=job.max_attempts,
        crashes=0,
        deliveries=0,
        run_at=job.run_at,
        created_at=created_at(job.id),
        group=or_unset(job.group_key),
        tags=tags_of(job.tags),
        metadata=metadata_of(job.metadata),
        replay_count=0,
    )


def fingerprint_of(body: object) -> UUID:
    """Equal for bodies that mean the same, so that a client may order its keys anew when it repeats a call."""
    meaning = msgspec.json.decode(msgspec.json.encode(body))
    return digest(msgspec.json.encode(meaning, order="sorted").decode())
