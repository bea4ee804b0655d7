"""Finds all errors of a body that msgspec has rejected, by reading it again member by member.

msgspec stops at the first error, words it for Python programmers, and rejects 60.0 as an integer, which JSON Schema accepts. This walk
finds every error, words it for callers, and writes integral floats as integers. It runs only for bodies that failed, and visits a bounded
number of values. Free JSON (`Raw`) is passed on as the bytes that were sent.
"""

import re
from collections.abc import Callable, Container, Iterable
from difflib import get_close_matches
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from msgspec import Raw, inspect

from app.errors import MAX_FAULTS, Fault
from app.http import instants

T = TypeVar("T")

MAX_VALUES = 20_000  # about 40 ms
MAX_SHOWN = 100  # characters of a name that the caller made up

_members = msgspec.json.Decoder(dict[str, Raw])
_items = msgspec.json.Decoder(list[Raw])
_OBJECT, _LIST = "an object", "a list"
_NAMES: dict[type, str] = {
    dict: _OBJECT,
    list: _LIST,
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}


class TooManyValues(Exception):
    """The body has more values than the walk may visit."""


class BodyErrors:
    """The errors of one body: how many there are, and the first few of them."""

    def __init__(self, others: Container[str] = (), *, suggest: bool = True, null_hint: str = "") -> None:
        """`others` are names of members that do not belong to the model and are no error."""
        self.count = 0
        self.faults: list[Fault] = []
        self.others: dict[str, Raw] = {}
        self._names_of_others = others
        self._suggest = suggest
        self._null_hint = null_hint
        self._left = MAX_VALUES

    def walk(self, kind: inspect.Type, raw: bytes | Raw, pointer: str) -> Any:
        """Returns the value to decode instead of the sent one. It is meaningless once there is an error."""
        self._left -= 1
        if self._left < 0:
            raise TooManyValues
        kind, rule = _unwrapped(kind)
        match kind:
            case inspect.RawType() | inspect.AnyType():
                return Raw(raw)
            case inspect.StructType():
                return self._object(kind, raw, pointer)
            case inspect.ListType():
                return self._list(kind, raw, pointer)
            case inspect.DictType():
                return self._map(kind, raw, pointer)
        return self._scalar(kind, raw, pointer, rule)

    def _object(self, kind: inspect.StructType, raw: bytes | Raw, pointer: str) -> Any:
        members = self._parts(_members, raw, pointer)
        if members is None:
            return None
        if not pointer:
            self.others = {name: members.pop(name) for name in list(members) if name in self._names_of_others}
        fields = {field.encode_name: field for field in kind.fields}
        for name in members:
            if name not in fields:
                self._add(
                    f"{pointer}/{escaped(name)}",
                    "unknown_field",
                    partial(unknown_field, name, fields if self._suggest else ()),
                )
        for name, field in fields.items():
            if field.required and name not in members:
                self._add(f"{pointer}/{name}", "missing", partial("required field {} is missing".format, name))
        return {
            name: self.walk(fields[name].type, value, f"{pointer}/{name}")
            for name, value in members.items()
            if name in fields
        }

    def _list(self, kind: inspect.ListType, raw: bytes | Raw, pointer: str) -> Any:
        items = self._parts(_items, raw, pointer)
        if items is None:
            return None
        self._check_size(kind, len(items), "item", pointer)
        return [self.walk(kind.item_type, item, f"{pointer}/{index}") for index, item in enumerate(items)]

    def _map(self, kind: inspect.DictType, raw: bytes | Raw, pointer: str) -> Any:
        members = self._parts(_members, raw, pointer)
        if members is None:
            return None
        self._check_size(kind, len(members), "member", pointer)
        return {
            name: self.walk(kind.value_type, value, f"{pointer}/{escaped(name)}") for name, value in members.items()
        }

    def _check_size(self, kind: inspect.ListType | inspect.DictType, size: int, what: str, pointer: str) -> None:
        if not _fits(size, kind.min_length, kind.max_length):
            self._refuse(pointer, f"must have {_span(kind.min_length, kind.max_length, what)}; it has {size}")

    def _parts(self, decoder: "msgspec.json.Decoder[T]", raw: bytes | Raw, pointer: str) -> T | None:
        try:
            return decoder.decode(raw)
        except msgspec.ValidationError:
            expected = _OBJECT if decoder is _members else _LIST
            self._refuse(pointer, f"must be {expected}, not {_NAMES[type(msgspec.json.decode(raw))]}")
            return None

    def _scalar(self, kind: inspect.Type, raw: bytes | Raw, pointer: str, rule: str | None) -> Any:
        value = msgspec.json.decode(raw)
        if isinstance(kind, inspect.IntType) and isinstance(value, float) and value.is_integer():
            value = int(value)
        refusal = _refusal(kind, value)
        if refusal:
            self._refuse(pointer, f"must be {rule}" if rule and isinstance(value, str) else refusal)
        return value

    def _refuse(self, pointer: str, why: str) -> None:
        hint = self._null_hint if why.endswith(", not null") else ""
        self._add(pointer, "invalid", lambda: f"{named(pointer)} {why}{hint}")

    def _add(self, pointer: str, code: str, detail: Callable[[], str]) -> None:
        self.count += 1
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(Fault(pointer, code, detail()))


def escaped(name: str) -> str:
    """The name as a step of a JSON pointer (RFC 6901)."""
    return name[:MAX_SHOWN].replace("~", "~0").replace("/", "~1")


def named(pointer: str) -> str:
    """`/jobs/3/queue` as people write it: jobs[3].queue."""
    steps = pointer.split("/")[1:]
    return "".join(f"[{step}]" if step.isdigit() else f".{step}" for step in steps).lstrip(".") or "the body"


def unknown_field(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1) if len(name) <= MAX_SHOWN else []
    return f"unknown field {name[:MAX_SHOWN]}" + (f"; did you mean {near[0]}?" if near else "")


def _unwrapped(kind: inspect.Type) -> tuple[inspect.Type, str | None]:
    """The type without its metadata, and the text of its rule if it has one."""
    if isinstance(kind, inspect.Metadata):
        return kind.type, (kind.extra or {}).get("rule")
    return kind, None


def _refusal(kind: inspect.Type, value: object) -> str | None:
    """Why the value is not of this type; None if it is."""
    match kind:
        case inspect.IntType():
            return _not_in_bounds(kind, value) if type(value) is int else f"must be an integer, not {_shown(value)}"
        case inspect.FloatType():
            return (
                _not_in_bounds(kind, value) if type(value) in (int, float) else f"must be a number, not {_shown(value)}"
            )
        case inspect.BoolType():
            return None if isinstance(value, bool) else f"must be true or false, not {_shown(value)}"
    if not isinstance(value, str):
        return f"must be a string, not {_shown(value)}"
    match kind:
        case inspect.StrType():
            return _not_a_valid_text(kind, value)
        case inspect.EnumType():
            options = [member.value for member in kind.cls]
            return None if value in options else f"must be one of {', '.join(options)}"
        case inspect.DateTimeType():
            return _not_an_instant(value)
        case inspect.UUIDType():
            return None if _is_uuid(value) else "must be a UUID"
    return None


def _shown(value: object) -> str:
    """The value of a float, as in "must be an integer, not 60.5"; otherwise the name of the type."""
    return repr(value) if type(value) is float else _NAMES[type(value)]


def _not_in_bounds(kind: inspect.IntType | inspect.FloatType, value: Any) -> str | None:
    return None if _fits(value, kind.ge, kind.le) else f"must be {_range(kind.ge, kind.le)}"


def _not_a_valid_text(kind: inspect.StrType, value: str) -> str | None:
    if not _fits(len(value), kind.min_length, kind.max_length):
        return f"must have {_span(kind.min_length, kind.max_length, 'character')}; it has {len(value)}"
    return f"must match {kind.pattern}" if kind.pattern is not None and not re.search(kind.pattern, value) else None


def _not_an_instant(value: str) -> str | None:
    try:
        instants.read(value)
    except ValueError as error:
        return str(error)
    return None


def _is_uuid(value: str) -> bool:
    try:
        msgspec.convert(value, UUID)
    except msgspec.ValidationError:
        return False
    return True


def _fits(value: float, low: float | None, high: float | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)


def _span(low: float | None, high: float | None, unit: str = "") -> str:
    """`unit` is a noun in the singular."""
    last = low if high is None else high
    noun = f" {unit}{'' if last == 1 else 's'}" if unit else ""
    if low is None or high is None:
        return f"at {'least' if high is None else 'most'} {last}{noun}"
    return f"{low} to {high}{noun}"


def _range(low: float | None, high: float | None) -> str:
    return _span(low, high) if low is None or high is None else f"from {low} to {high}"
