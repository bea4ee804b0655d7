"""What a schema cannot check of settlements. `at` is the pointer to one in the request: empty, or `/items/3`."""

from collections.abc import Iterator, Sequence

from app.enqueue.defaults import delay_fault
from app.errors import BatchTooLarge, Fault, refuse
from app.http import strict_json
from app.http.request_body import check_user_data
from app.http.schema_types import UNSET, Raw, text_of
from app.leases.schemas import Outcome, Settlement
from app.settings import Settings


def check_all(items: Sequence[Settlement], settings: Settings, at: str) -> None:
    if len(items) > settings.max_settlements:
        raise BatchTooLarge(
            f"{len(items)} settlements, at most {settings.max_settlements} are taken", settings.max_settlements
        )
    faults: list[Fault | None] = []
    for index, item in enumerate(items):
        if not _is_bare(item):
            faults += _faults(item, settings, f"{at}/{index}")
    if faults:
        refuse(faults)


def _is_bare(item: Settlement) -> bool:
    """A completion that brings nothing, as most do."""
    brings_data = item.result is not UNSET or item.checkpoint is not UNSET or item.error is not UNSET
    return (
        item.outcome is Outcome.COMPLETE
        and not brings_data
        and item.delay_seconds is UNSET
        and item.retry_after_seconds is UNSET
    )


def check(item: Settlement, settings: Settings) -> None:
    refuse(_faults(item, settings, ""))


def _faults(item: Settlement, settings: Settings, at: str) -> Iterator[Fault | None]:
    if item.outcome is Outcome.FAIL and item.error is UNSET:
        yield Fault(f"{at}/error", "missing", "outcome fail needs error")
    if item.outcome is Outcome.SNOOZE and item.delay_seconds is UNSET:
        yield Fault(f"{at}/delay_seconds", "missing", "outcome snooze needs delay_seconds")
    if item.retry_after_seconds is not UNSET:
        yield delay_fault(item.retry_after_seconds, settings, f"{at}/retry_after_seconds")
    if item.delay_seconds is not UNSET:
        yield delay_fault(item.delay_seconds, settings, f"{at}/delay_seconds")
    if item.result is not UNSET:
        _check_data(item.result, settings, f"{at}/result")
    if item.checkpoint is not UNSET:
        _check_data(item.checkpoint, settings, f"{at}/checkpoint")
    if item.error is not UNSET and item.error.details is not UNSET:
        _check_data(item.error.details, settings, f"{at}/error/details")


def _check_data(raw: Raw, settings: Settings, pointer: str) -> None:
    check_user_data(raw, settings.max_payload_bytes, pointer)
    strict_json.check_no_nul(text_of(raw), pointer)
