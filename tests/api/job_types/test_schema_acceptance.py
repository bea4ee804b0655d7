"""Which payload schemas are accepted, and how the others are rejected.

Most tests are pure and need no broker.
"""

import json
from typing import Any

import pytest

from app.errors import ValidationFailed
from app.job_types.payload_schema import MAX_SCHEMA_BYTES, PayloadSchema
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


def rejection_pointer(schema: object) -> str:
    with pytest.raises(ValidationFailed) as error:
        PayloadSchema(json.dumps(schema).encode())
    return error.value.faults[0].pointer.removeprefix("/payload_schema")


IPV6_GROUP = "[0-9a-fA-F]{1,4}"
IPV6 = "|".join(f"({IPV6_GROUP}:){{1,{8 - n}}}(:{IPV6_GROUP}){{1,{n}}}" for n in range(1, 8))
NULLABLE = {"anyOf": [{"type": "string"}, {"type": "null"}]}
EVENT = {
    "type": "object",
    "properties": {"kind": {"const": "created"}, "at": {"type": "string"}, "by": NULLABLE},
    "required": ["kind", "at"],
    "additionalProperties": False,
}

VALID: dict[str, Any] = {
    "nothing": {},
    "a reference": {"items": {REF: "#/$defs/x"}, "$defs": {"x": {"type": "string"}}},
    "a reference between definitions": {REF: "#/$defs/a", "$defs": {"a": {"items": {REF: "#/$defs/b"}}, "b": True}},
    "a definition that is used twice": {
        "properties": {"from": {REF: "#/$defs/x"}, "to": {REF: "#/$defs/x"}},
        "$defs": {"x": {"type": "string"}},
    },
    "escapes": {REF: "#/$defs/a~1b~0c%20%C3%A9", "$defs": {"a/b~c é": True}},
    "an id": {"$id": "https://example.com/mail.json", "items": {REF: "#/$defs/x"}, "$defs": {"x": True}},
    "properties named like keywords": {
        "properties": {"$ref": {"type": "string"}, "$id": {}, "id": {}, "$schema": {}, "allOf": {}, "$anchor": {}}
    },
    "data like keywords": {
        "const": {"$id": "x", REF: "http://x"},
        "examples": [{"id": "1", "unevaluatedItems": False}],
        "default": {REF: "#/nowhere"},
    },
    "unused definitions": {"$defs": {"a": {"type": "string"}}},
    "draft 7": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "items": [{REF: "#/definitions/a"}],
        "dependencies": {"a": ["b"], "c": {}},
        "definitions": {"a": {}},
    },
    "draft 4": {"$schema": DRAFT_4, "minimum": 1, "exclusiveMinimum": True},
    "names of people": {"pattern": r"^[\p{L} '-]{1,64}$"},
    "usual patterns": {"items": {"anyOf": [{"pattern": "^.{1,255}$"}, {"pattern": r"^[\w.+-]+@[\w-]+\.[\w.-]+$"}]}},
    "addresses": {"pattern": f"^({IPV6})$"},
    "many properties": {"properties": {f"p{n}": {"type": "string"} for n in range(1000)}},
    "many nullable properties": {"properties": {f"p{n}": {**NULLABLE, "default": None} for n in range(500)}},
    "many required properties": {"required": [f"p{n}" for n in range(1000)]},
    "many options": {"enum": [f"option {n}" for n in range(2500)]},
    "many numbers": {"enum": [*range(1000)]},
    "a union of many events": {"items": {"oneOf": [{REF: "#/$defs/event"}] * 50}, "$defs": {"event": EVENT}},
    "unique items": {"items": {"type": "string"}, "uniqueItems": True},
    "a few levels that double": doubling(8),
    "a chain": chain(100),
}
TREE = {"properties": {"left": {REF: "#/$defs/tree"}, "right": {REF: "#/$defs/tree"}}}
INVALID: dict[str, tuple[Any, str]] = {
    "another document": ({"items": {REF: "https://example.com/x.json"}}, "/items/$ref"),
    "a file": ({REF: "file:///etc/passwd"}, "/$ref"),
    "another document, relatively": ({REF: "other.json#/x"}, "/$ref"),
    "JSON Schema itself": ({"items": {REF: "https://json-schema.org/draft/2020-12/schema"}}, "/items/$ref"),
    "a reference to nothing": ({"allOf": [{REF: "#/$defs/x"}]}, "/allOf/0/$ref"),
    "a reference to no schema": ({REF: "#/$defs/x", "$defs": {"x": ["a"]}}, "/$ref"),
    "a reference to an inner schema": ({"allOf": [{}], "items": {REF: "#/allOf/0"}}, "/items/$ref"),
    "a reference to a nested definition": (
        {REF: "#/$defs/x/$defs/y", "$defs": {"x": {"$defs": {"y": {}}}}},
        "/$ref",
    ),
    "a reference to a nested definition, escaped": (
        {REF: "#/$defs/x%2Fy", "$defs": {"x": {"y": {}}, "x/y": {}}},
        "/$ref",
    ),
    "a reference to an unknown keyword": (
        {REF: "#/components/schemas/x", "components": {"schemas": {"x": {}}}},
        "/$ref",
    ),
    "half an escape": ({REF: "#/$defs/%4", "$defs": {"%4": {}}}, ""),
    "an anchor": ({"items": {REF: "#x"}, "$defs": {"y": {"$anchor": "x"}}}, "/$defs/y/$anchor"),
    "no such anchor": ({"properties": {"a/b": {REF: "#x"}}}, "/properties/a~1b/$ref"),
    "a dynamic reference": ({"items": {"$dynamicRef": "#node"}}, "/items/$dynamicRef"),
    "a dynamic anchor": ({"$dynamicAnchor": "node"}, "/$dynamicAnchor"),
    "a recursive reference": (
        {"$schema": "https://json-schema.org/draft/2019-09/schema", "items": {"$recursiveRef": "#"}},
        "/items/$recursiveRef",
    ),
    "a recursive anchor": ({"$recursiveAnchor": True}, "/$recursiveAnchor"),
    "another draft": ({"$schema": "http://json-schema.org/draft-03/schema#"}, "/$schema"),
    "a custom draft": ({"$schema": "https://example.com/schema"}, "/$schema"),
    "a nested draft": ({"items": {"$schema": DRAFT_4}}, "/items/$schema"),
    "a nested id": ({"$defs": {"x": {"$id": "x.json"}}}, "/$defs/x/$id"),
    "the id of a draft": ({"$id": "http://json-schema.org/draft-07/schema#"}, "/$id"),
    "itself": ({REF: "#"}, "/$ref"),
    "itself, among others": ({"type": "object", "allOf": [{"anyOf": [{REF: "#"}]}]}, "/allOf/0/anyOf/0/$ref"),
    "each other": (
        {REF: "#/$defs/a", "$defs": {"a": {REF: "#/$defs/b"}, "b": {"not": {REF: "#/$defs/a"}}}},
        "/$defs/a/$ref",
    ),
    "a tree": ({REF: "#/$defs/tree", "$defs": {"tree": TREE}}, "/$defs/tree/properties/right/$ref"),
    "a ring": (ring(3), "/$defs/d0/allOf/1/items/$ref"),
    "unevaluated properties": (
        {"items": {"properties": {"a": True}, "unevaluatedProperties": False}},
        "/items/unevaluatedProperties",
    ),
    "unevaluated items": ({"not": {"unevaluatedItems": True}}, "/not/unevaluatedItems"),
    "an unknown type": ({"properties": {"a": {"type": "text"}}}, "/properties/a/type"),
    "not a number": ({"minimum": "1"}, "/minimum"),
    "an invalid pattern": ({"items": {"pattern": "("}}, "/items/pattern"),
    "look-around": ({"pattern": "^(?!a)"}, "/pattern"),
    "a back-reference": ({"pattern": r"(a)\1"}, "/pattern"),
    "an invalid pattern for names": ({"patternProperties": {"(": {}}}, "/patternProperties/("),
    "a long pattern": ({"pattern": "a{5000}"}, "/pattern"),
    "a long pattern with spaces": ({"pattern": "a{ 5000 }"}, "/pattern"),
    "a long pattern for names": ({"patternProperties": {"a{5000}": {}}}, "/patternProperties/a{5000}"),
    "a verbose pattern": ({"pattern": "(?x)(a.{50}) {60}"}, "/pattern"),
    "repetitions of repetitions": ({"pattern": "((((a{9}){9}){9}){9}){9}"}, "/pattern"),
    "many patterns": (
        {"properties": {f"p{n}": {"pattern": f"^[a-z]{{1,50}}{n:02}$"} for n in range(100)}},
        "/properties/p74/pattern",
    ),
    "large classes": ({"pattern": r"\p{L}{1,300}"}, "/pattern"),
    # The smallest definition that is too expensive.
    "doubling": (doubling(20), "/$defs/d11"),
    "a long chain": (chain(1000), "/$defs/d375"),
    "many alternatives": ({"items": {"anyOf": [{"required": ["a", "b"]}] * 700}}, ""),
    "numbers in many alternatives": ({"anyOf": [{"enum": [n + 0.5 for n in range(1000)]}] * 7}, ""),
    "many bytes": ({"title": "x" * MAX_SCHEMA_BYTES}, ""),
    "many values": ({"enum": [0] * 10_001}, ""),
}
# Other pointers on the same cycle are correct, too.
ALTERNATIVE_POINTERS = {
    "each other": ["/$defs/b/not/$ref"],
    "a ring": ["/$defs/d1/allOf/1/items/$ref", "/$defs/d2/allOf/1/items/$ref"],
}


@pytest.mark.parametrize("name", VALID)
def test_accepts_valid_schema(name: str) -> None:
    PayloadSchema(json.dumps(VALID[name]).encode())


@pytest.mark.parametrize("name", INVALID)
def test_rejects_invalid_schema_with_a_pointer(name: str) -> None:
    schema, pointer = INVALID[name]
    assert rejection_pointer(schema) in (pointer, *ALTERNATIVE_POINTERS.get(name, ()))


@pytest.mark.parametrize("name", ["another document", "itself", "doubling", "look-around", "a tree"])
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
