"""The subset of JSON Schema: what it refuses, and the work that it counts for the rest."""

from typing import Any

import pytest

from app.errors import ValidationFailed
from app.job_types.schema_subset import MAX_CHECKS, MAX_PATTERN_SIZE, MAX_STEPS, Work, measure, pattern_size

REF = "$ref"
PATTERN_SIZES = [
    ("", 0),
    ("abc", 3),
    ("a|b", 2),
    ("^[a-z]{8}$", 10),
    ("a{2,5}", 5),
    ("a{3,}", 3),
    ("a{0}", 1),
    ("a{ 2 , 5 }", 5),
    ("(ab{3}){2}|c", 9),
    ("(?:ab){4}", 12),
    ("a*b+c?", 3),
    ("a{2}{3}", 6),
    ("(abc)?{4}", 12),
    (r"\d{4}-\x41", 8),
    (r"\p{L}{2}", 32),
    (r"\PL{2}", 32),
    (r"[\p{L} -]{2}", 32),
    (r"\u{1F600}{3}", 3),
    (r"[\]a{9}]{2}", 2),
    (r"\(ab\){3}", 6),
    ("[)]{3}", 3),
    ("a{", 2),
    ("a{,3}", 5),
    ("(a", 1),
    ("a)", 2),
    ("[" * 50_000, 1),
    (r"\p{" * 20_000, 16),
]
WORK: list[tuple[Any, Work]] = [
    (True, Work(1, 1)),
    ({}, Work(1, 1)),
    ({"type": "string", "title": "a"}, Work(3, 3)),
    ({"required": ["a", "b", "c"]}, Work(5, 5)),
    ({"dependentRequired": {"a": ["b", "c"]}, "dependencies": {"a": ["b"], "c": {}}}, Work(8, 8)),
    ({"minimum": 0, "maximum": 0.5}, Work(3, 83)),
    ({"multipleOf": 0.01}, Work(2, 1002)),
    ({"uniqueItems": True}, Work(2, 202)),
    ({"const": "a"}, Work(2, 3)),
    ({"const": 7}, Work(2, 42)),
    ({"const": 1e-300}, Work(2, 802)),
    ({"enum": ["a", 1, 2, {"b": 3}]}, Work(3, 125)),
    ({"const": "a" * 640}, Work(4, 3)),
    ({"pattern": "^a{9}$"}, Work(2, 222)),
    ({"patternProperties": {"^a": True, "b": True}}, Work(4, 64)),
    ({"allOf": [{"minItems": 1}, {"maxItems": 2}]}, Work(6, 6)),
    ({"not": {"type": "null"}}, Work(4, 4)),
    # A value has one name or index, so only the largest schema counts.
    ({"properties": {"a": {"type": "null"}, "b": {"type": "null", "title": "b"}}}, Work(5, 5)),
    ({"prefixItems": [{"type": "null"}], "items": {"type": "null"}}, Work(5, 5)),
    ({"items": {"type": "null"}, "contains": {"type": "null"}}, Work(7, 7)),
    # A definition counts where it is used.
    ({"$defs": {"a": {"pattern": "x{100}"}}}, Work(2, 2)),
    ({"allOf": [{REF: "#/$defs/a"}] * 2, "$defs": {"a": {"type": "null"}}}, Work(11, 11)),
]
REFUSED: list[tuple[Any, str, str]] = [
    ({"items": {"unevaluatedProperties": False}}, "/items/unevaluatedProperties", "use additionalProperties"),
    ({"unevaluatedItems": False}, "/unevaluatedItems", "use prefixItems, items or maxItems"),
    ({"$anchor": "a"}, "/$anchor", "#/$defs/name"),
    ({"$dynamicRef": "#a"}, "/$dynamicRef", "#/$defs/name"),
    ({REF: "#"}, "/$ref", "#/$defs/name"),
    ({REF: "#/$defs/a", "$defs": {"a": {"not": {REF: "#/$defs/a"}}}}, "/$defs/a/not/$ref", "recursion"),
    ({"items": {"$id": "a"}}, "/items/$id", "only the root schema"),
    ({"$schema": "a"}, "/$schema", "https://json-schema.org/draft/2020-12/schema"),
    ({"pattern": f"a{{{MAX_PATTERN_SIZE + 1}}}"}, "/pattern", f"{MAX_PATTERN_SIZE} characters"),
    ({"patternProperties": {"(?ix)a/b": True}}, "/patternProperties/(?ix)a~1b", "the flag x"),
    ({"required": ["a"] * MAX_CHECKS}, "", f"at most {MAX_CHECKS} keywords"),
    ({"enum": [0.5] * (MAX_STEPS // 40)}, "", "too many patterns"),
]


def refusal(schema: object) -> tuple[str, str]:
    with pytest.raises(ValidationFailed) as error:
        measure(schema)
    return error.value.faults[0].pointer.removeprefix("/payload_schema"), error.value.detail


def test_pattern_size_counts_written_out_repetitions() -> None:
    sizes = [(pattern, pattern_size(pattern)) for pattern, _ in PATTERN_SIZES]
    assert [(pattern[:20], size) for pattern, size in sizes if (pattern, size) not in PATTERN_SIZES] == []


def test_work_adds_up_the_schemas_for_one_value() -> None:
    assert [(schema, measure(schema)) for schema, work in WORK if measure(schema) != work] == []


def test_refusal_points_at_the_keyword_and_says_what_is_allowed() -> None:
    refusals = [(refusal(schema), pointer, text) for schema, pointer, text in REFUSED]
    assert [case for case in refusals if case[0][0] != case[1] or case[2] not in case[0][1]] == []


def test_work_doubles_with_each_level_of_doubling_references() -> None:
    def doubling(levels: int) -> object:
        steps = {f"d{n}": {"allOf": [{REF: f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
        return {REF: "#/$defs/d0", "$defs": {**steps, f"d{levels}": {"type": "string"}}}

    assert measure(doubling(7)).checks > 1.9 * measure(doubling(6)).checks
