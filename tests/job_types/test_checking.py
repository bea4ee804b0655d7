"""Where a payload does not fit its schema, told as pointers. Pure: nothing here needs a broker."""

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
    "what must come with another": ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, [("/b", "missing")]),
    "what is not wanted": (
        {"additionalProperties": False},
        {"a": 1, "b/c": 2},
        [("/a", "unknown_field"), ("/b~1c", "unknown_field")],
    ),
    "what is not wanted beside others": (
        {"properties": {"a": {"properties": {"b": {}}, "additionalProperties": False}}},
        {"a": {"b": 1, "c": 2}},
        [("/a/c", "unknown_field")],
    ),
    "anything at all": ({"items": {"additionalProperties": False}}, [{}, {"a": 1}], [("/1/a", "unknown_field")]),
    "what nobody knows": ({"unevaluatedProperties": False}, {"a": 1}, [("/a", "unknown_field")]),
    "a bad name": ({"propertyNames": {"maxLength": 1}}, {"ab": 1}, [("/ab", "invalid")]),
    "several": ({"required": ["a", "b"]}, {}, [("/a", "missing"), ("/b", "missing")]),
    "no alternative": (
        {"properties": {"a": {"anyOf": [{"type": "string"}, {"minimum": 5}]}}},
        {"a": 1},
        [("/a", "invalid")],
    ),
    "forbidden": ({"properties": {"a": False}}, {"a": 1}, [("/a", "invalid")]),
}


def faults(schema: object, payload: object, at: str = "") -> list[Fault]:
    text = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    try:
        PayloadSchema(json.dumps(schema).encode()).check(text, at)
    except ValidationFailed as refusal:
        return list(refusal.faults)
    return []


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("at", ["", "/jobs/3"])
def test_a_fault_is_pointed_at(name: str, at: str) -> None:
    schema, payload, expected = FAULTS[name]
    assert [(fault.pointer, fault.code) for fault in faults(schema, payload, at)] == [
        (f"{at}/payload{pointer}", code) for pointer, code in expected
    ]


def test_the_value_is_not_repeated_in_what_is_said_of_it() -> None:
    (fault,) = faults({"properties": {"password": {"maxLength": 3}}}, {"password": "secret"})
    assert "secret" not in fault.detail


def test_what_is_said_is_short() -> None:
    (fault,) = faults({"enum": [f"option {n}" for n in range(1000)]}, "other")
    assert len(fault.detail) <= MAX_DETAIL


def test_not_all_faults_of_many_are_told() -> None:
    assert len(faults({"items": {"type": "string"}}, [0] * 100)) == MAX_FAULTS
    assert len(faults({"additionalProperties": False}, {str(n): 0 for n in range(100)})) == MAX_FAULTS


def test_of_very_many_the_first_is_told() -> None:
    (fault,) = faults({"items": {"type": "string"}}, ["a"] * 5 + [0] * 9000)
    assert fault.pointer == "/payload/5"


def test_where_even_that_would_take_long_it_is_only_said_that_it_does_not_fit() -> None:
    tree = {"anyOf": [{"items": {"$ref": "#"}, "minItems": n} for n in range(2, 6)]}
    payload: Any = []
    for _ in range(40):
        payload = [payload]
    (fault,) = faults({"items": tree}, [payload])
    assert (fault.pointer, fault.code) == ("/payload", "invalid")


@pytest.mark.parametrize(
    ("schema", "payload", "fits"),
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
            '{"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/a", "definitions": {"a": {}}, "type": "null"}',
            "1",
            True,
        ),
        ('{"$ref": "#/$defs/a", "$defs": {"a": {}}, "type": "null"}', "1", False),
        ("false", "{}", False),
    ],
)
def test_values_mean_what_json_schema_says(schema: str, payload: str, fits: bool) -> None:
    checker = PayloadSchema(schema.encode())
    if fits:
        checker.check(payload.encode(), "")
    else:
        with pytest.raises(ValidationFailed):
            checker.check(payload.encode(), "")


# What would take long


def code(schema: object, payload: object) -> str | None:
    found = faults(schema, payload)
    return found[0].code if found else None


def test_a_payload_that_would_take_long_is_refused_before_it_is_tried() -> None:
    heavy = {"items": {"allOf": [{"enum": [n + 0.5 for n in range(100)] + [7]}] * 10}}
    assert code(heavy, [7] * 100) is None
    assert code(heavy, [7] * 9000) == "too_large"


def test_what_stands_in_texts_is_no_value() -> None:
    heavy = {"properties": {"n": {"allOf": [{"minimum": 0.5}] * 100}}}
    assert code(heavy, {"n": 1, "text": ",[{1e99" * 1000 + "1" * 5000}) is None


def test_long_numbers_that_differ_little_are_not_compared_each_with_each() -> None:
    assert code({"uniqueItems": True}, [10**40 + n for n in range(300)]) is None
    assert code({"uniqueItems": True}, [10**40 + n for n in range(3000)]) == "too_large"


def test_long_numbers_that_differ_much_or_not_at_all_are_no_matter() -> None:
    assert code({"uniqueItems": True}, [10**15 * n + 10**18 for n in range(5000)]) is None
    assert code({"uniqueItems": True}, [{"tenant": 10**18 + 1, "n": n} for n in range(3000)]) is None
