"""Checks what a bulk action applies to: the jobs with given ids, or those that match a filter.

An empty filter must be confirmed, so that a mistake does not change every job.
"""

from typing import Annotated, Any, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

from app.errors import ValidationFailed
from app.http.schema_types import value_or

F = TypeVar("F", bound=Struct)

All = Annotated[
    bool,
    Meta(description="Confirms an empty filter: everything in the queues that your key may access. Default false."),
]

# What `bulk_filter` accepts, for the OpenAPI document: ids; or a filter that is not empty; or `all`.
BULK_TARGET: dict[str, Any] = {
    "if": {"required": ["ids"]},
    "then": {"not": {"required": ["filter"]}, "properties": {"all": {"const": False}}},
    "else": {
        "if": {"required": ["all"], "properties": {"all": {"const": True}}},
        "else": {"required": ["filter"], "properties": {"filter": {"minProperties": 1}}},
    },
}


def bulk_filter(ids: object, requested: F | UnsetType, match_all: bool | UnsetType, empty: F) -> F | None:
    """Returns the filter of a bulk request, or None if the request has ids.

    `match_all` is the member `all` of the request. If it is true, the filter may be empty, and an
    absent filter is returned as `empty`. Raises ValidationFailed if the request has neither ids nor
    a filter, or both, or an empty filter without `all: true`.
    """
    confirmed = value_or(match_all, False)
    if ids is not UNSET:
        if requested is not UNSET or confirmed:
            raise ValidationFailed.at(
                "/all" if confirmed else "/filter", "ids already select the jobs: send either ids or a filter"
            )
        return None
    if requested is UNSET and not confirmed:
        raise ValidationFailed.at("/filter", "send either ids or a filter", "missing")
    chosen = value_or(requested, empty)
    if chosen == empty and not confirmed:
        raise ValidationFailed.at(
            "/filter", "an empty filter matches everything: name at least a queue, or send `all: true`"
        )
    return chosen
