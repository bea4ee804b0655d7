"""Checks job fields by rules that a schema cannot express: they depend on settings or the clock."""

from datetime import datetime, timedelta

import msgspec

from app.errors import Fault
from app.http.instants import RANGE, is_in_range
from app.http.json_pointer import format_pointer
from app.http.schema_types import Raw, UnsetType
from app.settings import Settings

MAX_METADATA_BYTES = 16 * 1024


def lease_fault(seconds: int | UnsetType, settings: Settings, pointer: str) -> Fault | None:
    if isinstance(seconds, UnsetType) or settings.min_lease_seconds <= seconds <= settings.max_lease_seconds:
        return None
    detail = f"{format_pointer(pointer)} must be from {settings.min_lease_seconds} to {settings.max_lease_seconds}"
    return Fault(pointer, "invalid", detail)


def delay_fault(seconds: int | UnsetType, settings: Settings, pointer: str) -> Fault | None:
    if isinstance(seconds, UnsetType) or seconds <= settings.max_delay_seconds:
        return None
    return Fault(pointer, "invalid", f"{format_pointer(pointer)} must be at most {settings.max_delay_seconds}")


def instant_fault(instant: datetime, settings: Settings, now: datetime, pointer: str) -> Fault | None:
    """Returns a fault if the instant is too far ahead, or outside the range of valid instants.

    The range is checked here because the decoder of a batch does not check it.
    """
    if not is_in_range(instant):
        return Fault(pointer, "invalid", f"{format_pointer(pointer)} must be {RANGE}")
    if instant > now + timedelta(seconds=settings.max_delay_seconds):
        return Fault(
            pointer, "invalid", f"{format_pointer(pointer)} must be at most {settings.max_delay_seconds} seconds ahead"
        )
    return None


def metadata_fault(metadata: dict[str, Raw] | UnsetType, pointer: str) -> Fault | None:
    if isinstance(metadata, UnsetType) or len(msgspec.json.encode(metadata)) <= MAX_METADATA_BYTES:
        return None
    return Fault(f"{pointer}/metadata", "too_large", f"metadata must have at most {MAX_METADATA_BYTES} bytes")
