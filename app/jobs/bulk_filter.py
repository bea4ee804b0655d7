"""Checks how a bulk request selects jobs: by `ids` or by a `filter`.

An empty filter must be confirmed with `all: true`, so that a mistake does not change every job.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, TypeVar
from uuid import UUID

from msgspec import UNSET, Meta, Struct, UnsetType

from app.errors import Fault, raise_for_faults
from app.http.member_rules import MemberRule, ValueOf, rule_faults
from app.http.schema_types import RequestModel, value_or

F = TypeVar("F", bound=Struct)


class BulkTarget(MemberRule):
    """A bulk request must have `ids`, a `filter` that is not empty, or `all: true`."""

    @property
    def json_schema(self) -> dict[str, Any]:
        return {
            "if": {"required": ["ids"]},
            "then": {"not": {"required": ["filter"]}, "properties": {"all": {"const": False}}},
            "else": {
                "if": {"required": ["all"], "properties": {"all": {"const": True}}},
                "else": {"required": ["filter"], "properties": {"filter": {"minProperties": 1}}},
            },
        }

    def faults(self, value_of: ValueOf, pointer: str) -> Iterator[Fault]:
        requested, confirmed = value_of("filter"), value_of("all") is True
        if value_of("ids") is not UNSET:
            detail = "ids already select the jobs: send either ids or a filter"
            if requested is not UNSET:
                yield Fault(f"{pointer}/filter", "invalid", detail)
            if confirmed:
                yield Fault(f"{pointer}/all", "invalid", detail)
        elif not confirmed and requested is UNSET:
            yield Fault(f"{pointer}/filter", "missing", "send either ids or a filter")
        elif not confirmed and _is_empty(requested):
            detail = "an empty filter matches everything: name at least a queue, or send `all: true`"
            yield Fault(f"{pointer}/filter", "invalid", detail)


def _is_empty(requested: Any) -> bool:
    return bool(requested == (type(requested)() if isinstance(requested, Struct) else {}))


class BulkRequest(RequestModel):
    """The common members of bulk requests: `ids`, and `all`, which confirms an empty filter."""

    rules: ClassVar[Sequence[MemberRule]] = (BulkTarget(),)

    ids: Annotated[list[UUID], Meta(max_length=1000)] | UnsetType = UNSET
    all: (
        Annotated[
            bool,
            Meta(
                description="Confirms an empty filter: everything in the queues that your key may access. "
                "Default false."
            ),
        ]
        | UnsetType
    ) = UNSET


def bulk_filter(request: BulkRequest, requested: F | UnsetType, empty: F) -> F | None:
    """Returns the filter of a bulk request, or None if the request has ids.

    With `all: true` the filter may be empty or absent. `empty` is returned for an absent filter.
    Raises ValidationFailed if the request has

    - ids together with a filter or with `all: true`;
    - no ids and no `all: true`, and an empty filter or none.
    """
    raise_for_faults(rule_faults(request))
    return None if request.ids is not UNSET else value_or(requested, empty)
