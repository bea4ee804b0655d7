"""Checks of a requested job that a schema cannot express."""

from collections.abc import Iterator
from datetime import datetime

from app.enqueue.schemas import JobCreate, OnDuplicate, Unique
from app.errors import Fault
from app.http.request_body import check_user_data
from app.http.schema_types import UNSET, Raw
from app.http.strict_json import MAX_VALUES
from app.jobs.validation import delay_fault, instant_fault, lease_fault, metadata_fault
from app.settings import Settings


def find_faults(job: JobCreate, settings: Settings, now: datetime, pointer: str) -> list[Fault | None]:
    """`pointer` is the JSON pointer to the job in the request: empty, or `/jobs/3`.

    Checks only the fields that are present, because most jobs have none of them.
    """
    faults: list[Fault | None] = []
    if job.run_at is not UNSET:
        if job.delay_seconds is not UNSET:
            faults.append(Fault(f"{pointer}/delay_seconds", "invalid", "send either run_at or delay_seconds, not both"))
        faults.append(instant_fault(job.run_at, settings, now, f"{pointer}/run_at"))
    if job.delay_seconds is not UNSET:
        faults.append(delay_fault(job.delay_seconds, settings, f"{pointer}/delay_seconds"))
    if job.lease_seconds is not UNSET:
        faults.append(lease_fault(job.lease_seconds, settings, f"{pointer}/lease_seconds"))
    if job.metadata is not UNSET:
        faults.append(metadata_fault(job.metadata, pointer))
    if job.expires_at is not UNSET:
        faults.append(instant_fault(job.expires_at, settings, now, f"{pointer}/expires_at"))
    if job.on_parent_failure is not UNSET and job.depends_on is UNSET:
        faults.append(Fault(f"{pointer}/on_parent_failure", "invalid", "on_parent_failure requires depends_on"))
    if job.unique is not UNSET:
        faults += _unique_faults(job, job.unique, settings, pointer)
    return faults


def check_payload(payload: Raw, settings: Settings, pointer: str) -> None:
    """Skips the full check for payloads that are shorter than every limit, which most are."""
    size = len(payload)
    if size >= MAX_VALUES or size > settings.max_payload_bytes:
        check_user_data(payload, settings.max_payload_bytes, f"{pointer}/payload")


def _unique_faults(job: JobCreate, unique: Unique, settings: Settings, pointer: str) -> Iterator[Fault | None]:
    if "\x00" in unique.key:
        yield Fault(f"{pointer}/unique/key", "invalid", "unique.key must not contain a NUL character")
    yield delay_fault(unique.for_seconds, settings, f"{pointer}/unique/for_seconds")
    if unique.on_duplicate is OnDuplicate.REPLACE and job.depends_on is not UNSET:
        detail = "on_duplicate replace cannot be used with depends_on: a replaced job keeps its dependencies"
        yield Fault(f"{pointer}/unique/on_duplicate", "invalid", detail)
