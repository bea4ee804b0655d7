"""Validation of payloads, with pointers to their faults. Pure: no broker is needed."""

import json
from typing import Any

import pytest

from app.errors import MAX_FAULTS, Fault, ValidationFailed
from app.job_types.payload_schema import MAX_DETAIL, PayloadSchema

FAULTS: dict[str, tuple[Any, Any, list[tuple[str, str]]]] = {
    "the payload itself": ({"type": "object"}, [], [("", "invalid")]),
    "a property": ({"properties": {"a": {"type": "string"}}}, {"a": 1}, [("/a", "invalid")]),
    "an item": ({"items": {"type": "string"}}, ["a", 1], [("/1", "invalid")]),
    "far down": ({"properties": {"a": {"items": {"required": ["b"]}}}}, {"a": [{"b": 1}, {}]}, [("/a/1/b", "missing")]),
    "names with slashes": ({"properties": {"a/b": {"required": ["~"]}}}, {"a/b": {}}, [("/a~1b/~0", "missing")]),
    "an empty name": ({"required": [""]}, {}, [("/", "missing")]),
    "a dependent property": ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, [("/b", "missing")]),
    "unexpected properties": (
        {"additionalProperties": False},
        {"a": 1, "b/c": 2},
        [("/a", "unknown_field"), ("/b~1c", "unknown_field")],
    ),
    "an unexpected property beside an allowed one": (
        {"properties": {"a": {"properties": {"b": {}}, "additionalProperties": False}}},
        {"a": {"b": 1, "c": 2}},
        [("/a/c", "unknown_field")],
    ),
    "no property allowed": ({"items": {"additionalProperties": False}}, [{}, {"a": 1}], [("/1/a", "unknown_field")]),
    "an invalid name": ({"propertyNames": {"maxLength": 1}}, {"ab": 1}, [("/ab", "invalid")]),
    "several": ({"required": ["a", "b"]}, {}, [("/a", "missing"), ("/b", "missing")]),
    "no alternative": (
        {"properties": {"a": {"anyOf": [{"type": "string"}, {"minimum": 5}]}}},
        {"a": 1},
        [("/a", "invalid")],
    ),
    "forbidden": ({"properties": {"a": False}}, {"a": 1}, [("/a", "invalid")]),
}


def faults(schema: object, payload: object, pointer_prefix: str = "") -> list[Fault]:
    text = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    try:
        PayloadSchema(json.dumps(schema).encode()).check(text, pointer_prefix)
    except ValidationFailed as error:
        return list(error.faults)
    return []


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("pointer_prefix", ["", "/jobs/3"])
def test_invalid_payload_is_reported_with_a_pointer(name: str, pointer_prefix: str) -> None:
    schema, payload, expected = FAULTS[name]
    assert [(fault.pointer, fault.code) for fault in faults(schema, payload, pointer_prefix)] == [
        (f"{pointer_prefix}/payload{pointer}", code) for pointer, code in expected
    ]


def test_error_detail_does_not_contain_the_value() -> None:
    (fault,) = faults({"properties": {"password": {"maxLength": 3}}}, {"password": "secret"})
    assert "secret" not in fault.detail


def test_error_detail_is_short() -> None:
    (fault,) = faults({"enum": [f"option {n}" for n in range(1000)]}, "other")
    assert len(fault.detail) <= MAX_DETAIL


def test_reported_faults_are_limited() -> None:
    assert len(faults({"items": {"type": "string"}}, [0] * 100)) == MAX_FAULTS
    assert len(faults({"additionalProperties": False}, {str(n): 0 for n in range(100)})) == MAX_FAULTS


def test_only_the_first_of_very_many_faults_is_reported() -> None:
    (fault,) = faults({"items": {"type": "string"}}, ["a"] * 5 + [0] * 9000)
    assert fault.pointer == "/payload/5"


def test_expensive_explanation_is_reduced_to_one_fault_of_the_payload() -> None:
    alternatives = {"anyOf": [{"type": "string"}, {"minimum": 5}]}
    assert faults({"items": alternatives}, [0])[0].pointer == "/payload/0"
    (fault,) = faults({"items": alternatives}, [0] * 9000)
    assert (fault.pointer, fault.code) == ("/payload", "invalid")


@pytest.mark.parametrize(
    ("schema", "payload", "valid"),
    [
        ('{"type": "integer"}', "1.0", True),
        ('{"type": "integer"}', "1e2", True),
        ('{"type": "integer"}', "1.5", False),
        ('{"type": "integer"}', "true", False),
        ('{"type": "integer"}', "9" * 64, True),
        ('{"const": 1}', "1.0", True),
        ('{"const": 1}', "true", False),
        ('{"const": 9007199254740993}', "9007199254740993", True),
        ('{"const": 9007199254740993}', "9007199254740992", False),
        ('{"multipleOf": 0.01}', "19.99", True),
        ('{"multipleOf": 0.01}', "19.995", False),
        ('{"maximum": 1e308}', "1.7976931348623157e308", False),
        ('{"minimum": 5e-324}', "5e-324", True),
        ('{"uniqueItems": true}', "[1, 1.0]", False),
        ('{"uniqueItems": true}', "[1, true]", True),
        ('{"maxLength": 1}', '"😀"', True),
        ('{"pattern": "^\\\\d$"}', '"٣"', False),
        ('{"format": "email"}', '"nobody"', True),
        ('{"$schema": "http://json-schema.org/draft-07/schema#", "format": "email"}', '"nobody"', True),
        ('{"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer"}', "1.0", False),
        (
            '{"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/a", '
            '"definitions": {"a": {}}, "type": "null"}',
            "1",
            True,
        ),
        ('{"$ref": "#/$defs/a", "$defs": {"a": {}}, "type": "null"}', "1", False),
        ("false", "{}", False),
    ],
)
def test_validation_follows_json_schema_semantics(schema: str, payload: str, valid: bool) -> None:
    compiled = PayloadSchema(schema.encode())
    if valid:
        compiled.check(payload.encode(), "")
    else:
        with pytest.raises(ValidationFailed):
            compiled.check(payload.encode(), "")


# Expensive payloads


def code(schema: object, payload: object) -> str | None:
    listed = faults(schema, payload)
    return listed[0].code if listed else None


def test_expensive_payload_is_rejected_before_validation() -> None:
    expensive = {"items": {"allOf": [{"enum": [n + 0.5 for n in range(100)] + [7]}] * 10}}
    assert code(expensive, [7] * 100) is None
    assert code(expensive, [7] * 9000) == "too_large"


def test_structure_inside_strings_does_not_count_as_values() -> None:
    expensive = {"properties": {"n": {"allOf": [{"minimum": 0.5}] * 100}}}
    assert code(expensive, {"n": 1, "text": ",[{1e99" * 1000 + "1" * 5000}) is None


def test_many_long_numbers_with_colliding_hashes_are_rejected_by_unique_items() -> None:
    assert code({"uniqueItems": True}, [10**40 + n for n in range(300)]) is None
    assert code({"uniqueItems": True}, [10**40 + n for n in range(3000)]) == "too_large"


def test_long_numbers_without_colliding_hashes_are_accepted_by_unique_items() -> None:
    assert code({"uniqueItems": True}, [10**15 * n + 10**18 for n in range(5000)]) is None
    assert code({"uniqueItems": True}, [{"tenant": 10**18 + 1, "n": n} for n in range(3000)]) is None
