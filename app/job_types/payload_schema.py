"""Compiles a payload schema and validates payloads against it.

Validation never fetches a schema from a URL, and its time is bounded: `schema_subset` bounds the
work for one value of a payload, and a payload with too many values is rejected.
"""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import jsonschema_rs
import msgspec
from jsonschema_rs import ValidationError, ValidationErrorKind

from app.errors import MAX_FAULTS, Fault, ValidationFailed, raise_for_faults
from app.http import strict_json
from app.http.json_pointer import escape_pointer_step
from app.job_types.schema_subset import SCHEMA_POINTER, measure, schema_fault, subschemas

MAX_SCHEMA_BYTES = 64 * 1024
MAX_DETAIL = 300

_MAX_STEPS = 25_000_000  # for one payload: about a second
# Limit for collecting all errors of a payload: about half a second. Each error takes 7 µs, plus the
# time to copy the invalid value.
_MAX_EXPLAIN_STEPS = 200_000
# Matches numbers that jsonschema-rs compares as fractions, which is up to twenty times slower.
_SLOW_NUMBER = re.compile(rb"\d(?:\d{16}|[eE][+-]?\d\d)")
_LONG_NUMBER = re.compile(rb"\d{16,}")
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')

# The `regex` crate matches in linear time and has no look-around. The default engine of
# jsonschema-rs backtracks.
_REGEX_OPTIONS = jsonschema_rs.RegexOptions(size_limit=4 * 1024 * 1024, dfa_size_limit=1024 * 1024)

_PATTERN_DETAIL = "invalid or unsupported regular expression: there is no look-around and no back-reference"
_TYPE_DETAIL = "type must be array, boolean, integer, null, number, object or string, or a list of distinct ones"


class PayloadSchema:
    def __init__(self, schema: bytes) -> None:
        """Compiles the schema. If the schema is not accepted, raises ValidationFailed with a
        pointer to the invalid part."""
        _check_form(schema)
        value = msgspec.json.decode(schema)
        self._work = measure(value)
        keywords = {keyword for _, subschema in subschemas(value) for keyword in subschema}
        self._has_unique_items = "uniqueItems" in keywords
        self._has_alternatives = not keywords.isdisjoint({"anyOf", "oneOf"})
        self._validator = _compile(schema.decode())

    def check(self, payload: bytes, pointer: str) -> None:
        """Raises ValidationFailed if the payload does not match.

        `pointer` is the JSON pointer to the job in the request: empty, or `/jobs/3`.
        """
        if self._is_too_expensive(payload):
            detail = "the payload is too large to be validated against the payload schema of its job type"
            raise ValidationFailed.at(f"{pointer}/payload", detail, "too_large")
        value = msgspec.json.decode(payload)
        if self._validator.is_valid(value):
            return
        faults = iter(self._faults(payload, value, f"{pointer}/payload"))
        listed = list(islice(faults, MAX_FAULTS))
        raise ValidationFailed.of(listed, len(listed) + sum(1 for _ in faults))

    def _is_too_expensive(self, payload: bytes) -> bool:
        """Whether validating the payload could take more than _MAX_STEPS.

        For most payloads, the length alone rules this out. Counts the values only of long payloads.
        """
        max_size, length = _MAX_STEPS // self._work.steps, len(payload)
        if 8 * length + (length * length // 1000 if self._has_unique_items else 0) < max_size:
            return False
        return _size(payload) + (_colliding_pairs(payload) // 3 if self._has_unique_items else 0) > max_size

    def _faults(self, payload: bytes, value: object, pointer: str) -> Iterator[Fault]:
        errors = chain.from_iterable(_faults_of_error(error, value, pointer) for error in self._errors(payload, value))
        first = next(errors, Fault(pointer, "invalid", "does not match the payload schema of its job type"))
        return chain([first], errors)

    def _errors(self, payload: bytes, value: object) -> Iterator[ValidationError]:
        """Yields the errors of an invalid payload, as many as _MAX_EXPLAIN_STEPS allows.

        - If collecting all errors takes at most _MAX_EXPLAIN_STEPS: yields all errors.
          jsonschema-rs builds the complete list, each error with a copy of the invalid value.
        - If collecting all errors would take more steps: yields only the first error.
        - If it would take more steps and the schema has `anyOf` or `oneOf`: yields no error. For
          such a schema, jsonschema-rs collects all errors of the alternatives even to build the
          first error.
        """
        depth = _depth(value)
        if self._work.checks * _size(payload) * (depth + 8) <= _MAX_EXPLAIN_STEPS:
            yield from self._validator.iter_errors(value)
        elif not self._has_alternatives:
            try:
                self._validator.validate(value)
            except ValidationError as error:
                yield error


def _check_form(schema: bytes) -> None:
    if schema[:1] not in (b"{", b"t", b"f"):
        raise schema_fault("", "payload_schema must be an object or a boolean")
    if len(schema) > MAX_SCHEMA_BYTES:
        raise ValidationFailed.at(
            SCHEMA_POINTER,
            f"payload_schema has {len(schema)} bytes; at most {MAX_SCHEMA_BYTES} are allowed",
            "too_large",
        )
    raise_for_faults([strict_json.value_count_fault(schema, SCHEMA_POINTER)])


def _compile(schema: str) -> jsonschema_rs.Validator:
    """Compiles the schema from the JSON text that was sent, so that numbers keep all their digits."""
    try:
        return jsonschema_rs.validator_for(
            schema, validate_formats=False, mask="the value", pattern_options=_REGEX_OPTIONS, offline=True
        )
    except ValidationError as error:
        raise schema_fault(_pointer(error), _invalid_schema_detail(error)) from None
    except ValueError as error:
        raise schema_fault("", str(error)[:MAX_DETAIL]) from None


def _invalid_schema_detail(error: ValidationError) -> str:
    """Describes the error in a schema. Replaces the messages of jsonschema-rs for invalid patterns
    and invalid types.

    For an invalid `type`, jsonschema-rs says "not valid under any of the schemas listed in the
    'anyOf' keyword".
    """
    if isinstance(error.kind, ValidationErrorKind.Format):
        return _PATTERN_DETAIL
    return _TYPE_DETAIL if error.instance_path[-1:] == ["type"] else error.message[:MAX_DETAIL]


def _pointer(error: ValidationError) -> str:
    return "".join(f"/{escape_pointer_step(step)}" for step in error.instance_path)


def _faults_of_error(error: ValidationError, payload: Any, pointer: str) -> Iterator[Fault]:
    """Converts an error to faults.

    The fault for a missing or unexpected property points at the property. The error of
    jsonschema-rs points at the object instead.
    """
    pointer = pointer + _pointer(error)
    kind, detail = error.kind, error.message[:MAX_DETAIL]
    match kind:
        case ValidationErrorKind.Required():
            yield Fault(f"{pointer}/{escape_pointer_step(kind.property)}", "missing", detail)
        case ValidationErrorKind.PropertyNames():
            yield Fault(f"{pointer}/{escape_pointer_step(str(kind.error.instance))}", "invalid", detail)
        case _ if unexpected := _unexpected_properties(error, payload):
            yield from (
                Fault(
                    f"{pointer}/{escape_pointer_step(name)}", "unknown_field", "the payload schema has no such property"
                )
                for name in unexpected
            )
        case _:
            yield Fault(pointer, "invalid", detail)


def _unexpected_properties(error: ValidationError, payload: Any) -> list[str]:
    """Returns the names of the properties that the schema does not allow. Returns an empty list for
    an error of another kind.

    If the schema allows no further properties at all, the error does not list the names. They are
    then read from the object in the payload.
    """
    kind = error.kind
    if isinstance(kind, ValidationErrorKind.AdditionalProperties):
        return kind.unexpected
    if isinstance(kind, ValidationErrorKind.FalseSchema) and error.schema_path[-1:] == ["additionalProperties"]:
        for step in error.instance_path:
            payload = payload[step]
        return list(payload)
    return []


def _size(payload: bytes) -> int:
    """Returns an upper bound of the number of values in a payload.

    A long string counts as several values, and so does a number that _SLOW_NUMBER matches, because
    validating them takes as long as validating several values.
    """
    text = _STRING.sub(b"", payload)
    values = 1 + text.count(b",") + text.count(b"[") + text.count(b"{")
    return values + len(payload) // 64 + 20 * len(_SLOW_NUMBER.findall(text))


def _colliding_pairs(payload: bytes) -> int:
    """Counts the pairs of long numbers that are equal when rounded to a float.

    `uniqueItems` hashes the rounded number, so it compares each number with all others of the same
    hash. If a rounded number occurs in only one spelling, its pairs do not count.
    """
    numbers = _LONG_NUMBER.findall(_STRING.sub(b"", payload))
    spelling_counts = Counter(map(float, set(numbers)))
    counts = Counter(number for number in map(float, numbers) if spelling_counts[number] > 1)
    return sum(count * (count - 1) // 2 for count in counts.values())


def _depth(value: object) -> int:
    """Returns the nesting depth of a value: 1 for a number or an empty list, 2 for `[1]`."""
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, children), default=0)
