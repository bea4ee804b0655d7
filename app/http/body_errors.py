"""Finds all errors in a body, by reading it member by member.

msgspec stops at the first error, describes it for Python programmers, and rejects 60.0 as an
integer, which JSON Schema accepts. `BodyErrors` walks through all values, describes every error for
callers, and replaces integral floats by integers. It visits a bounded number of values, and passes
JSON without a schema (`Raw`) on as the bytes that were sent. The walk runs only for bodies that
msgspec has rejected, that have an instant out of range, or that may have read-only members.
"""

import re
from collections.abc import Callable, Container, Iterable
from difflib import get_close_matches
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from msgspec import UNSET, Raw, inspect

from app.errors import MAX_FAULTS, Fault
from app.http import instants
from app.http.json_pointer import EMPTY_NAME, escape_pointer_step, format_pointer

T = TypeVar("T")

MAX_VALUES = 20_000  # visited in one body; this takes about 40 ms
MAX_SHOWN = 100  # characters of an unknown name that its error shows
MIN_SIMILARITY = 0.65  # with difflib's default, 0.6, `sort` would be similar to `cursor`

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
    """Raised when the walk has visited MAX_VALUES values."""


class BodyErrors:
    """Walks through one body, counts its errors and keeps the first MAX_FAULTS of them."""

    def __init__(self, extra_names: Container[str] = (), *, suggest: bool = True, null_hint: str = "") -> None:
        """`extra_names`: names of members that are accepted although the model has no such field.
        `suggest`: the error for an unknown field names the most similar field of the model.
        `null_hint` is added to the error for a null."""
        self.count = 0
        self.rule_count = 0  # errors about rules across members; `count` includes them
        self.faults: list[Fault] = []
        self.extra_members: dict[str, Raw] = {}
        self._extra_names = extra_names
        self._suggest = suggest
        self._null_hint = null_hint
        self._values_left = MAX_VALUES

    def walk(self, kind: inspect.Type, raw: bytes | Raw, pointer: str) -> Any:
        """Checks a value and the values in it against a type, and collects the errors. Returns the
        value with integral floats replaced by integers. The result is usable if there is no error,
        or only errors about rules across members. The service that handles the body checks these
        rules again, together with its other checks."""
        self._values_left -= 1
        if self._values_left < 0:
            raise TooManyValues
        kind, rule = _unwrap(kind)
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
            self.extra_members = {name: members.pop(name) for name in list(members) if name in self._extra_names}
        fields = {field.encode_name: field for field in kind.fields}
        for name in members:
            if name not in fields:
                self._add(
                    _member_pointer(pointer, name),
                    "unknown_field",
                    partial(unknown_field_detail, name, fields if self._suggest else (), _name_prefix(pointer)),
                )
        for name, field in fields.items():
            if field.required and name not in members:
                self._add(f"{pointer}/{name}", "missing", partial(_missing_field_detail, f"{pointer}/{name}"))
        walked = {
            name: self.walk(fields[name].type, value, f"{pointer}/{name}")
            for name, value in members.items()
            if name in fields
        }
        self._check_rules(kind, members, pointer)
        return walked

    def _check_rules(self, kind: inspect.StructType, members: dict[str, Raw], pointer: str) -> None:
        """Checks the rules across the members of an object."""

        def value_of(name: str) -> Any:
            return msgspec.json.decode(members[name]) if name in members else UNSET

        for rule in getattr(kind.cls, "rules", ()):
            for fault in rule.faults(value_of, pointer):
                self._add(fault.pointer, fault.code, partial(str, fault.detail))
                self.rule_count += 1

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
            name: self.walk(kind.value_type, value, _member_pointer(pointer, name)) for name, value in members.items()
        }

    def _check_size(self, kind: inspect.ListType | inspect.DictType, size: int, unit: str, pointer: str) -> None:
        if not _fits(size, kind.min_length, kind.max_length):
            self._reject(
                pointer, f"must have {_format_count_range(kind.min_length, kind.max_length, unit)}; it has {size}"
            )

    def _parts(self, decoder: "msgspec.json.Decoder[T]", raw: bytes | Raw, pointer: str) -> T | None:
        try:
            return decoder.decode(raw)
        except msgspec.ValidationError:
            expected = _OBJECT if decoder is _members else _LIST
            self._reject(pointer, f"must be {expected}, not {_NAMES[type(msgspec.json.decode(raw))]}")
            return None

    def _scalar(self, kind: inspect.Type, raw: bytes | Raw, pointer: str, rule: str | None) -> Any:
        value = msgspec.json.decode(raw)
        if isinstance(kind, inspect.IntType) and isinstance(value, float) and value.is_integer():
            value = int(value)
        reason = _violation(kind, value)
        if reason:
            self._reject(pointer, f"must be {rule}" if rule and isinstance(value, str) else reason)
        return value

    def _reject(self, pointer: str, reason: str) -> None:
        hint = self._null_hint if reason.endswith(", not null") else ""
        self._add(pointer, "invalid", lambda: f"{format_pointer(pointer)} {reason}{hint}")

    def _add(self, pointer: str, code: str, detail: Callable[[], str]) -> None:
        self.count += 1
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(Fault(pointer, code, detail()))


def _member_pointer(pointer: str, name: str) -> str:
    """Returns the pointer to a member of an object. Cuts the name, because the caller chose it."""
    return f"{pointer}/{escape_pointer_step(name[:MAX_SHOWN])}"


def _name_prefix(pointer: str) -> str:
    """Returns the prefix that errors put before the names of an object's members: `jobs[3].` for
    the object at `/jobs/3`."""
    return f"{format_pointer(pointer)}." if pointer else ""


def _missing_field_detail(pointer: str) -> str:
    return f"required field {format_pointer(pointer)} is missing"


def unknown_field_detail(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Formats the error for an unknown field, and suggests the most similar known name, if there is
    one. `prefix` stands before the name: `jobs[3].` for a field of the fourth job."""
    similar = _similar_name(name, known)
    return f"unknown field {prefix}{name[:MAX_SHOWN] or EMPTY_NAME}" + (f"; did you mean {similar}?" if similar else "")


def _similar_name(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that is most similar to `name`, or None if none is similar. Prefers
    the shortest one that begins with `name`: `delay_seconds` for `delay`. Ignores case and
    separators, so that `JOB-TYPE` is similar to `job_type`."""
    normalized, by_normalized = _normalize_name(name), {_normalize_name(other): other for other in known}
    if len(name) > MAX_SHOWN:
        return None
    longer = [other for other in by_normalized if len(normalized) > 2 and other.startswith(normalized)]
    near = sorted(longer, key=len) or get_close_matches(normalized, by_normalized, n=1, cutoff=MIN_SIMILARITY)
    return by_normalized[near[0]] if near else None


def _normalize_name(name: str) -> str:
    return re.sub(r"[\W_]", "", name).lower()


def _unwrap(kind: inspect.Type) -> tuple[inspect.Type, str | None]:
    """Returns the type without its metadata, and its rule: how errors describe a valid value.

    The rule of `Name` is NAME_RULE. Most types have no rule.
    """
    if isinstance(kind, inspect.Metadata):
        return kind.type, (kind.extra or {}).get("rule")
    return kind, None


def _violation(kind: inspect.Type, value: object) -> str | None:
    """Describes how the value violates the type. The text has no subject: "must be a string, not a
    number". Returns None if the value is valid."""
    match kind:
        case inspect.IntType():
            return (
                _bounds_violation(kind, value) if type(value) is int else f"must be an integer, not {_describe(value)}"
            )
        case inspect.FloatType():
            return (
                _bounds_violation(kind, value)
                if type(value) in (int, float)
                else f"must be a number, not {_describe(value)}"
            )
        case inspect.BoolType():
            return None if isinstance(value, bool) else f"must be true or false, not {_describe(value)}"
    if not isinstance(value, str):
        return f"must be a string, not {_describe(value)}"
    match kind:
        case inspect.StrType():
            return _text_violation(kind, value)
        case inspect.EnumType():
            options = [member.value for member in kind.cls]
            return None if value in options else f"must be one of {', '.join(options)}"
        case inspect.DateTimeType():
            return _instant_violation(value)
        case inspect.UUIDType():
            return None if _is_uuid(value) else "must be a UUID"
    return None


def _describe(value: object) -> str:
    """Describes a value of a wrong type by the name of its type: "a string". Describes a float by
    the value itself, for errors such as "must be an integer, not 60.5"."""
    return repr(value) if type(value) is float else _NAMES[type(value)]


def _bounds_violation(kind: inspect.IntType | inspect.FloatType, value: Any) -> str | None:
    return None if _fits(value, kind.ge, kind.le) else f"must be {_format_value_range(kind.ge, kind.le)}"


def _text_violation(kind: inspect.StrType, value: str) -> str | None:
    if not _fits(len(value), kind.min_length, kind.max_length):
        return f"must have {_format_count_range(kind.min_length, kind.max_length, 'character')}; it has {len(value)}"
    return f"must match {kind.pattern}" if kind.pattern is not None and not re.search(kind.pattern, value) else None


def _instant_violation(value: str) -> str | None:
    try:
        instants.parse(value)
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


def _format_count_range(low: float | None, high: float | None, unit: str = "") -> str:
    """Formats a range such as "1 to 5 items". `unit` is a noun in the singular."""
    last = low if high is None else high
    noun = f" {unit}{'' if last == 1 else 's'}" if unit else ""
    if low is None or high is None:
        return f"at {'least' if high is None else 'most'} {last}{noun}"
    return f"{low} to {high}{noun}"


def _format_value_range(low: float | None, high: float | None) -> str:
    return _format_count_range(low, high) if low is None or high is None else f"from {low} to {high}"
