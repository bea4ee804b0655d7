"""What shapes are made of: the two bases, and the field types that rooms share.

msgspec and not pydantic, because `Raw` hands a payload through as the bytes that were sent (and decoding costs 0.5 µs, not 3.6).
Optional fields are `X | UnsetType = UNSET`: absent, never null.
"""

from datetime import datetime
from typing import Annotated, Any, ClassVar, TypeVar, dataclass_transform
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, StructMeta, UnsetType
from pydantic import StringConstraints

T = TypeVar("T")
D = TypeVar("D")

# Neither `.` nor `..`: clients remove these from a path before they send it. Without look-ahead, which pydantic's patterns do not support.
NAME_PATTERN = r"^(\.{0,2}[A-Za-z0-9_:-]|\.{3})[A-Za-z0-9._:-]*$"
NAME_LENGTH = 120
NAME_RULE = f"1 to {NAME_LENGTH} of the characters A-Z a-z 0-9 . _ : - and neither . nor .."


@dataclass_transform(frozen_default=True, kw_only_default=True)
class _Model(StructMeta):
    """Frozen, and fields by keyword only, in every subclass too: msgspec alone would ask for both again in each of them. And nothing
    for the garbage collector: what is sent or told holds no circle."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **config: Any) -> Any:
        return super().__new__(cls, name, bases, namespace, **{"frozen": True, "kw_only": True, "gc": False, **config})


class RequestModel(Struct, metaclass=_Model, forbid_unknown_fields=True):
    """What comes in. A field that we do not know is an error: a misspelt `delay_second` must not run the job now."""

    json_schema: ClassVar[dict[str, Any]] = {}  # constraints across fields, added to the schema that msgspec generates


def not_both(one: str, other: str) -> dict[str, Any]:
    """A constraint for `json_schema`. Not oneOf, because client generators turn it into a union."""
    return {"not": {"required": [one, other]}}


class EmptyObject(RequestModel):
    """For calls that take no body: what is sent all the same was meant for another call."""


class ResponseModel(Struct, metaclass=_Model):
    """What goes out."""


# `\Z`, because `$` also matches before a trailing newline; web.openapi writes it as `$`.
Name = Annotated[
    str, Meta(pattern=NAME_PATTERN.replace("$", r"\Z"), min_length=1, max_length=NAME_LENGTH, extra={"rule": NAME_RULE})
]
Tag = Annotated[str, Meta(min_length=1, max_length=120)]
Instant = Annotated[datetime, Meta(tz=True, extra_json_schema={"format": "date-time"})]
Int32 = Annotated[int, Meta(extra_json_schema={"format": "int32"})]
Int64 = Annotated[int, Meta(extra_json_schema={"format": "int64"})]
Number = Annotated[float, Meta(extra_json_schema={"format": "double"})]

DryRun = Annotated[bool, Meta(description="True if this was a dry run, in which nothing changed. Otherwise absent.")]


def integer(*, ge: int, le: int | None = None, description: str | None = None) -> Any:
    """Bounds of an integer field; generators want to know how many bits it needs."""
    return Meta(ge=ge, le=le, description=description, extra_json_schema={"format": "int32"})


def number(*, ge: float, le: float | None = None, description: str | None = None) -> Any:
    return Meta(ge=ge, le=le, description=description, extra_json_schema={"format": "double"})


# For parameters of a path or a query, which pydantic checks.
NameParameter = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=NAME_LENGTH)]


def value_or(value: T | UnsetType, default: D) -> T | D:
    """What was sent, or else the default."""
    return default if isinstance(value, UnsetType) else value


def unset_if_none(value: Any) -> Any:
    """SQL's NULL is HTTP's absence."""
    return UNSET if value is None else value


def raw_or_unset(text: str | None) -> Raw | UnsetType:
    """JSON text from the database, passed on as it is."""
    return UNSET if text is None else Raw(text.encode())


def text_of(raw: Raw | UnsetType) -> str | None:
    """JSON text for the database, as it was sent."""
    return None if isinstance(raw, UnsetType) else bytes(raw).decode()


def encoded(value: object) -> str | None:
    """JSON text for the database of what has no raw form; nothing for what was not sent."""
    return None if value is UNSET else msgspec.json.encode(value).decode()


__all__ = [
    "UNSET",
    "UUID",
    "Annotated",
    "Instant",
    "Int32",
    "Int64",
    "Meta",
    "Name",
    "Number",
    "Raw",
    "RequestModel",
    "ResponseModel",
    "Tag",
    "UnsetType",
]
