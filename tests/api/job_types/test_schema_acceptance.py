"""Which payload schemas are accepted, and how the others are rejected.

Most tests are pure and need no broker.
"""

import json
from typing import Any

import pytest

from app.errors import ValidationFailed
from app.job_types.payload_schema import MAX_SCHEMA_BYTES, PayloadSchema
from app.job_types.regex_size import regex_size
from app.job_types.schema_cost import MAX_COST, SchemaCost
from tests.api.job_types.conftest import Put
from tests.api_client import Api

REF = "$ref"
DRAFT_4 = "http://json-schema.org/draft-04/schema#"


def doubling(levels: int) -> dict[str, Any]:
    """Each definition applies the next one twice."""
    steps = {f"d{n}": {"allOf": [{REF: f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {REF: "#/$defs/d0", "$defs": {**steps, f"d{levels}": {"type": "string"}}}


def ring(length: int) -> dict[str, Any]:
    """Each definition applies the next one twice to each item, and the last one applies the first."""
    steps = {f"d{n}": {"allOf": [{"items": {REF: f"#/$defs/d{(n + 1) % length}"}}] * 2} for n in range(length)}
    return {REF: "#/$defs/d0", "$defs": steps}


def chain(length: int) -> dict[str, Any]:
    """Each definition applies the next one to the same value."""
    steps = {f"d{n}": {"anyOf": [{REF: f"#/$defs/d{n + 1}"}]} for n in range(length)}
    return {"items": {REF: "#/$defs/d0"}, "$defs": {**steps, f"d{length}": {"type": "string"}}}


def unevaluated(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"properties": {"a": True}}
    for _ in range(levels):
        schema = {"anyOf": [schema], "unevaluatedProperties": False}
    return schema


def rejection_pointer(schema: object) -> str:
    with pytest.raises(ValidationFailed) as error:
        PayloadSchema(json.dumps(schema).encode())
    return error.value.faults[0].pointer.removeprefix("/payload_schema")


VALID: dict[str, Any] = {
    "nothing": {},
    "a reference": {"items": {REF: "#/$defs/x"}, "$defs": {"x": {"type": "string"}}},
    "an anchor": {"items": {REF: "#x"}, "$defs": {"y": {"$anchor": "x"}}},
    "an anchor after its reference": {"$defs": {"a": {REF: "#x"}, "b": {"$anchor": "x"}}, REF: "#/$defs/a"},
    "escapes": {REF: "#/$defs/a~1b~0c%20%C3%A9", "$defs": {"a/b~c é": True}},
    "an item of a list": {"allOf": [{"type": "string"}], "items": {REF: "#/allOf/0"}},
    "a reference to an unknown keyword": {
        REF: "#/components/schemas/x",
        "components": {
            "schemas": {
                "x": {"items": {REF: "#/components/y"}},
            },
            "y": {},
        },
    },
    "a tree": {"properties": {"left": {REF: "#"}, "right": {REF: "#"}}},
    "dynamic recursion": {"$dynamicAnchor": "node", "items": {"$dynamicRef": "#node"}},
    "recursion of 2019": {"$schema": "https://json-schema.org/draft/2019-09/schema", "items": {"$recursiveRef": "#"}},
    "expressions": {
        "oneOf": [
            {"type": "object", "properties": {name: {"items": {REF: "#"}}}} for name in ("and", "or", "not", "if")
        ]
    },
    "an id": {"$id": "https://example.com/mail.json", "items": {REF: "#/$defs/x"}, "$defs": {"x": True}},
    "properties named like keywords": {
        "properties": {"$ref": {"type": "string"}, "$id": {}, "id": {}, "$schema": {}, "allOf": {}}
    },
    "data like keywords": {
        "const": {"$id": "x", REF: "http://x"},
        "examples": [{"id": "1"}],
        "default": {REF: "#/nowhere"},
    },
    "unused definitions": {"$defs": {"a": {"type": "string"}}},
    "draft 7": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "items": [{}],
        "dependencies": {"a": ["b"], "c": {}},
    },
    "draft 4": {"$schema": DRAFT_4, "minimum": 1, "exclusiveMinimum": True},
    "names of people": {"pattern": r"^[\p{L} '-]{1,64}$"},
    "usual patterns": {"items": {"anyOf": [{"pattern": "^.{1,255}$"}, {"pattern": r"^[\w.+-]+@[\w-]+\.[\w.-]+$"}]}},
    "many properties": {"properties": {f"p{n}": {"type": "string"} for n in range(1000)}},
    "a few levels that double": doubling(10),
    "a chain": chain(25),
}
INVALID: dict[str, tuple[Any, str]] = {
    "another document": ({"items": {REF: "https://example.com/x.json"}}, "/items/$ref"),
    "a file": ({REF: "file:///etc/passwd"}, "/$ref"),
    "another document, relatively": ({REF: "other.json#/x"}, "/$ref"),
    "JSON Schema itself": ({"items": {REF: "https://json-schema.org/draft/2020-12/schema"}}, "/items/$ref"),
    "a reference to nothing": ({"allOf": [{REF: "#/$defs/x"}]}, "/allOf/0/$ref"),
    "a reference to no schema": ({REF: "#/required", "required": ["a"]}, "/$ref"),
    "a reference to the wrong spelling of an index": ({"allOf": [{}], "items": {REF: "#/allOf/00"}}, "/items/$ref"),
    "half an escape": ({REF: "#/$defs/%4", "$defs": {"%4": {}}}, "/$ref"),
    "no such anchor": ({"properties": {"a/b": {REF: "#x"}}}, "/properties/a~1b/$ref"),
    "two anchors": ({"$defs": {"a": {"$anchor": "x"}, "b": {"$dynamicAnchor": "x"}}}, "/$defs/a/$anchor"),
    "another draft": ({"$schema": "http://json-schema.org/draft-03/schema#"}, "/$schema"),
    "a custom draft": ({"$schema": "https://example.com/schema"}, "/$schema"),
    "a nested draft": ({"items": {"$schema": DRAFT_4}}, "/items/$schema"),
    "a nested id": ({"$defs": {"x": {"$id": "x.json"}}}, "/$defs/x/$id"),
    "an id on the path of a reference": ({REF: "#/a/b", "a": {"$id": "x", "b": {}}}, "/$ref/$id"),
    "the id of a draft": ({"$id": "http://json-schema.org/draft-07/schema#"}, "/$id"),
    "itself": ({REF: "#"}, ""),
    "itself, among others": ({"type": "object", "allOf": [{"anyOf": [{REF: "#"}]}]}, ""),
    "each other": (
        {REF: "#/$defs/a", "$defs": {"a": {REF: "#/$defs/b"}, "b": {"not": {REF: "#/$defs/a"}}}},
        "/$defs/a",
    ),
    "itself, dynamically": ({"$dynamicAnchor": "x", "if": {"$dynamicRef": "#x"}}, ""),
    "a chain": (chain(40), "/items"),
    "an unknown type": ({"properties": {"a": {"type": "text"}}}, "/properties/a/type"),
    "not a number": ({"minimum": "1"}, "/minimum"),
    "an invalid pattern": ({"items": {"pattern": "("}}, "/items/pattern"),
    "look-around": ({"pattern": "^(?!a)"}, "/pattern"),
    "a back-reference": ({"pattern": r"(a)\1"}, "/pattern"),
    "an invalid pattern for names": ({"patternProperties": {"(": {}}}, "/patternProperties/("),
    "doubling": (doubling(20), ""),
    "a ring": (ring(20), ""),
    "unevaluated": (unevaluated(20), ""),
    "a long pattern": ({"pattern": "a{5000}"}, ""),
    "repetitions of repetitions": ({"pattern": "((((a{9}){9}){9}){9}){9}"}, ""),
    "many patterns": ({"properties": {f"p{n}": {"pattern": f"^[a-z]{{1,50}}{n}$"} for n in range(100)}}, ""),
    "large classes": ({"pattern": r"\p{L}{1,300}"}, ""),
    "many bytes": ({"title": "x" * MAX_SCHEMA_BYTES}, ""),
    "many values": ({"enum": [0] * 10_001}, ""),
}
# Other pointers on the same cycle are correct, too.
ALTERNATIVE_POINTERS = {
    "two anchors": ["/$defs/b/$dynamicAnchor"],
    "itself, among others": ["/allOf/0", "/allOf/0/anyOf/0"],
    "each other": ["/$defs/b", "/$defs/b/not"],
    "itself, dynamically": ["/if"],
}


@pytest.mark.parametrize("name", VALID)
def test_accepts_valid_schema(name: str) -> None:
    PayloadSchema(json.dumps(VALID[name]).encode())


@pytest.mark.parametrize("name", INVALID)
def test_rejects_invalid_schema_with_a_pointer(name: str) -> None:
    schema, pointer = INVALID[name]
    assert rejection_pointer(schema) in (pointer, *ALTERNATIVE_POINTERS.get(name, ()))


@pytest.mark.parametrize("name", ["another document", "itself", "doubling", "look-around"])
def test_rejected_schema_creates_no_job_type(name: str, api: Api, put: Put, job_type: str) -> None:
    schema, pointer = INVALID[name]
    problem = put(payload_schema=schema, status=422)
    assert problem["code"] == "validation_failed"
    assert problem["errors"][0]["pointer"].startswith(f"/payload_schema{pointer}")
    api.get(f"/job-types/{job_type}", status=404)


def test_reference_to_a_file_is_rejected(tmp_path: Any) -> None:
    """The validator would not follow it either, because it is offline."""
    (tmp_path / "x.json").write_text('{"type": "string"}')
    assert rejection_pointer({REF: (tmp_path / "x.json").as_uri()}) == "/$ref"


# Cost


def cost(schema: object) -> int:
    return SchemaCost(schema).cost


def test_cost_doubles_with_each_level_of_doubling_references() -> None:
    assert cost(doubling(10)) > 1.9 * cost(doubling(9))


def test_cost_counts_only_the_most_expensive_named_child() -> None:
    """A value has one name, so the schemas of other names are not applied to it."""
    one = {"properties": {"a": {"pattern": "^x{100}$"}}}
    ten_names = {"properties": {name: {"pattern": "^x{100}$"} for name in "abcdefghij"}}
    assert cost(ten_names) < cost(one) + 20


def test_cost_of_a_recursive_tree_does_not_grow_with_its_branches() -> None:
    two = {"properties": {"left": {REF: "#"}, "right": {REF: "#"}}}
    assert cost(two) < 2 * cost({"properties": {"left": {REF: "#"}}})


def test_unused_definition_costs_nothing() -> None:
    assert cost({"$defs": {"a": {"pattern": "x{100}"}}}) == cost({"$defs": {}})


def test_recursive_alternatives_stay_below_the_maximum_cost() -> None:
    ten_names = {"oneOf": [{"properties": {"op": {"const": op}, "args": {"items": {REF: "#"}}}} for op in "abcdefghij"]}
    assert cost(ten_names) < MAX_COST


def test_maximum_number_of_errors_grows_with_the_depth_of_recursion() -> None:
    """Recursion is not cached while errors are collected, so each level adds to them."""
    schema_cost = SchemaCost({"anyOf": [{"items": {REF: "#"}}] * 3})
    assert schema_cost.max_faults(6) > 3**5 > schema_cost.max_faults(1)
    assert not schema_cost.is_plain


@pytest.mark.parametrize(
    ("expensive", "cheap"),
    [
        ({"multipleOf": 0.01}, {"multipleOf": 2}),
        ({"minimum": 1e-300}, {"minimum": 0.5}),
        ({"enum": [0.5, 1.5]}, {"enum": ["a", "b", 3, None]}),
        ({"enum": [{"a": 1}] * 100}, {"enum": ["a"] * 100}),
        ({"const": {"a": [1, 2, 3]}}, {"const": "a"}),
        ({"uniqueItems": True}, {"uniqueItems": False}),
        ({"required": ["a", "b", "c"]}, {"required": ["a"]}),
        ({"patternProperties": {"^a{9}": {}}}, {"patternProperties": {"^a": {}}}),
    ],
    ids=str,
)
def test_slower_keyword_costs_more(expensive: object, cheap: object) -> None:
    assert cost(expensive) > cost(cheap)


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("", 0),
        ("abc", 3),
        ("a|b", 2),
        ("^[a-z]{8}$", 10),
        ("a{2,5}", 5),
        ("a{3,}", 3),
        ("a{0}", 1),
        ("(ab{3}){2}|c", 9),
        ("(?:ab){4}", 8),
        ("(?<year>[0-9]{4})", 4),
        ("a*b+c?", 3),
        ("a{2}{3}", 6),
        (r"\d{4}-\p{Lu}{2}\u00e9\x41", 9),
        (r"[\]a{9}]{2}", 2),
        ("a{", 2),
        ("a{,3}", 5),
        ("(a", 1),
        ("a)", 2),
        ("[" * 50_000, 1),
        (r"\p{" * 20_000, 1),
    ],
    ids=lambda value: str(value)[:20],
)
def test_regex_size_counts_written_out_repetitions(pattern: str, size: int) -> None:
    assert regex_size(pattern) == size
