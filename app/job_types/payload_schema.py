"""A payload schema, compiled: whether a payload fits, and where it does not. It never fetches anything and never takes long."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

import jsonschema_rs
import msgspec
from jsonschema_rs import ValidationError, ValidationErrorKind

from app.errors import MAX_FAULTS, Fault, ValidationFailed
from app.http import strict_json
from app.job_types.schema_cost import MAX_STEPS, SchemaCost
from app.job_types.schema_walker import AT, escaped

MAX_SCHEMA_BYTES = 64 * 1024
MAX_DETAIL = 300

_MOST_EXPLAINED = 200_000  # about half a second: an error takes 7 µs, and a copy of what it is about
_HEAVY = re.compile(rb"\d{17}|[eE][+-]?\d\d")  # numbers that are compared as fractions, up to twenty times slower
_LONG = re.compile(rb"\d{16,}")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')

# `regex` matches in linear time and knows no look-around; what this engine would be given by default goes back, and back again.
_PATTERNS = jsonschema_rs.RegexOptions(size_limit=4 * 1024 * 1024, dfa_size_limit=1024 * 1024)

_NO_PATTERN = "not a regular expression that we take: there is no look-around and no reference to a group"
_NO_TYPE = "type must be array, boolean, integer, null, number, object or string, or a list of several different ones"


class PayloadSchema:
    def __init__(self, schema: bytes) -> None:
        """Raises, with a pointer, for a schema that we do not take."""
        _check_form(schema)
        self._weight = SchemaCost(msgspec.json.decode(schema))
        self._validator = _compiled(schema.decode())

    def check(self, payload: bytes, at: str) -> None:
        """`at` is the pointer to the job in the request: empty, or `/jobs/3`."""
        if self._takes_long(payload):
            detail = "more than can be checked against the payload schema of its type"
            raise ValidationFailed.at(f"{at}/payload", detail, "too_large")
        value = msgspec.json.decode(payload)
        if self._validator.is_valid(value):
            return
        faults = iter(self._faults(payload, value, f"{at}/payload"))
        listed = list(islice(faults, MAX_FAULTS))
        raise ValidationFailed.of(listed, len(listed) + sum(1 for _ in faults))

    def _takes_long(self, payload: bytes) -> bool:
        """Most payloads are so short that their size cannot be too large. Others are counted: first with all that looks like a value
        in their texts, and only when that is too much, without."""
        most, length = MAX_STEPS // self._weight.cost, len(payload)
        if 8 * length + (length * length // 1000 if self._weight.unique else 0) < most:
            return False
        return self._size(payload, payload) > most and self._size(payload, _STRING.sub(b"", payload)) > most

    def _size(self, payload: bytes, marks: bytes) -> int:
        """How many values it has, or more; long texts and odd numbers count as several."""
        values = 1 + marks.count(b",") + marks.count(b"[") + marks.count(b"{")
        pairs = _colliding(marks) if self._weight.unique else 0
        return values + len(payload) // 64 + 20 * len(_HEAVY.findall(marks)) + pairs // 3

    def _faults(self, payload: bytes, value: object, at: str) -> Iterator[Fault]:
        errors = chain.from_iterable(_faults_of(error, value, at) for error in self._errors(payload, value))
        first = next(errors, Fault(at, "invalid", "does not fit the payload schema of its type"))
        return chain([first], errors)

    def _errors(self, payload: bytes, value: object) -> Iterable[ValidationError]:
        """All of them, or the first, or none: each comes with a copy of the value that it is about, and they are collected at once."""
        depth = _depth(value)
        if self._weight.faults(depth) * self._size(payload, payload) * (depth + 8) <= _MOST_EXPLAINED:
            return self._validator.iter_errors(value)
        return self._first(value) if self._weight.plain else []

    def _first(self, value: object) -> Iterator[ValidationError]:
        try:
            self._validator.validate(value)
        except ValidationError as error:
            yield error


def _check_form(schema: bytes) -> None:
    if schema[:1] not in (b"{", b"t", b"f"):
        raise ValidationFailed.at(AT, "payload_schema must be an object or a boolean")
    if len(schema) > MAX_SCHEMA_BYTES:
        raise ValidationFailed.at(
            AT, f"payload_schema has {len(schema)} bytes; at most {MAX_SCHEMA_BYTES} are allowed", "too_large"
        )
    strict_json.check_nodes(schema, AT)


def _compiled(schema: str) -> jsonschema_rs.Validator:
    """As the text that was sent: numbers in it keep all their digits."""
    try:
        return jsonschema_rs.validator_for(
            schema, validate_formats=False, mask="the value", pattern_options=_PATTERNS, offline=True
        )
    except ValidationError as error:
        pointer = AT + "".join(f"/{escaped(step)}" for step in error.instance_path)
        raise ValidationFailed.at(pointer, _why_no_schema(error)) from None
    except ValueError as error:
        raise ValidationFailed.at(AT, str(error)[:MAX_DETAIL]) from None


def _why_no_schema(error: ValidationError) -> str:
    """A schema for schemas words a wrong `type` as "not valid under any of the schemas listed in the 'anyOf' keyword"."""
    if isinstance(error.kind, ValidationErrorKind.Format):
        return _NO_PATTERN
    return _NO_TYPE if error.instance_path[-1:] == ["type"] else error.message[:MAX_DETAIL]


def _faults_of(error: ValidationError, payload: Any, at: str) -> Iterator[Fault]:
    """A property that is missing or not wanted is pointed at, not the object that it is missing from."""
    pointer = at + "".join(f"/{escaped(step)}" for step in error.instance_path)
    kind, detail = error.kind, error.message[:MAX_DETAIL]
    match kind:
        case ValidationErrorKind.Required():
            yield Fault(f"{pointer}/{escaped(kind.property)}", "missing", detail)
        case ValidationErrorKind.PropertyNames():
            yield Fault(f"{pointer}/{escaped(str(kind.error.instance))}", "invalid", detail)
        case _ if unexpected := _unexpected(error, payload):
            yield from (
                Fault(f"{pointer}/{escaped(name)}", "unknown_field", "the schema knows no such property")
                for name in unexpected
            )
        case _:
            yield Fault(pointer, "invalid", detail)


def _unexpected(error: ValidationError, payload: Any) -> list[str]:
    """Names that the schema does not know. Where it knows none at all, the error does not name them."""
    kind = error.kind
    if isinstance(kind, ValidationErrorKind.AdditionalProperties | ValidationErrorKind.UnevaluatedProperties):
        return kind.unexpected
    if isinstance(kind, ValidationErrorKind.FalseSchema) and error.schema_path[-1:] == ["additionalProperties"]:
        for step in error.instance_path:
            payload = payload[step]
        return list(payload)
    return []


def _colliding(marks: bytes) -> int:
    """Pairs of long numbers that differ and are one number when rounded: so they are hashed where items must be unique, and then each
    is compared with each."""
    found = _LONG.findall(marks)
    spellings = Counter(map(float, set(found)))
    counts = Counter(number for number in map(float, found) if spellings[number] > 1)
    return sum(count * (count - 1) // 2 for count in counts.values())


def _depth(value: object) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, parts), default=0)
