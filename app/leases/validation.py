"""Checks of claims, settlements and heartbeats that a JSON schema cannot express.

`pointer` is a JSON pointer into the request. It points to one settlement (empty, or `/items/3`) or
to a list of settlements (`/items` or `/settle`).
"""

from collections.abc import Iterator, Sequence
from operator import attrgetter

from app.errors import BatchTooLarge, Fault, raise_for_faults
from app.http import strict_json
from app.http.authorization import Access
from app.http.bodies import user_data_fault
from app.http.member_rules import rule_faults
from app.http.schema_types import UNSET, Raw, raw_to_text
from app.jobs.validation import delay_fault, lease_fault
from app.leases.schemas import ClaimJobs, Outcome, Settlement
from app.settings import Settings
from app.slices import in_slices

_get_checked_fields = attrgetter("outcome", "result", "checkpoint", "error", "delay_seconds", "retry_after_seconds")
# These fields of a completion without data. Most settlements are such completions, and they need no check.
_PLAIN_COMPLETION = (Outcome.COMPLETE, UNSET, UNSET, UNSET, UNSET, UNSET)


def check_claim(request: ClaimJobs, queue_names: Sequence[str], limit: int, access: Access, settings: Settings) -> None:
    """Checks a claim, without the settlements that it carries: `check_settlements` checks them."""
    for index, name in enumerate(queue_names):
        access.check(name, f"/queues/{index}")
    faults: list[Fault | None] = []
    if limit > settings.max_claim_jobs:
        faults.append(Fault("/max_jobs", "invalid", f"max_jobs must be at most {settings.max_claim_jobs}"))
    if request.lease_seconds is not UNSET:
        faults.append(lease_fault(request.lease_seconds, settings, "/lease_seconds"))
    if faults:
        raise_for_faults(faults)


def check_count(items: Sequence[object], noun: str, settings: Settings) -> None:
    limit = settings.max_settlements
    if len(items) > limit:
        raise BatchTooLarge(f"{len(items)} {noun}, but at most {limit} are allowed in one request", limit)


async def check_settlements(items: Sequence[Settlement], settings: Settings, pointer: str) -> None:
    check_count(items, "settlements", settings)
    unchecked = [(index, item) for index, item in enumerate(items) if _get_checked_fields(item) != _PLAIN_COMPLETION]
    faults: list[Fault | None] = []
    async for index, item in in_slices(unchecked):
        faults += _check_fields(item, settings, f"{pointer}/{index}")
    if faults:
        raise_for_faults(faults)


def check_settlement(item: Settlement, settings: Settings) -> None:
    raise_for_faults(_check_fields(item, settings, ""))


def _check_fields(item: Settlement, settings: Settings, pointer: str) -> Iterator[Fault | None]:
    """Yields the faults of a settlement. Raises PayloadTooLarge if its user data is too large."""
    if item.outcome is not Outcome.COMPLETE:
        yield from rule_faults(item, pointer)
    if item.retry_after_seconds is not UNSET:
        yield delay_fault(item.retry_after_seconds, settings, f"{pointer}/retry_after_seconds")
    if item.delay_seconds is not UNSET:
        yield delay_fault(item.delay_seconds, settings, f"{pointer}/delay_seconds")
    if item.result is not UNSET:
        yield from _data_faults(item.result, settings, f"{pointer}/result")
    if item.checkpoint is not UNSET:
        yield from _data_faults(item.checkpoint, settings, f"{pointer}/checkpoint")
    if item.error is not UNSET and item.error.details is not UNSET:
        yield from _data_faults(item.error.details, settings, f"{pointer}/error/details")


def _data_faults(raw: Raw, settings: Settings, pointer: str) -> Iterator[Fault | None]:
    yield user_data_fault(raw, settings.max_payload_bytes, pointer)
    yield strict_json.nul_fault(raw_to_text(raw), pointer)
