"""Schemas and payloads that try to hang, crash or exhaust the process.

Each attack runs in a process of its own, because a hang would hold the GIL forever.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from app.db.migrations import ROOT

TIMEOUT = 300  # seconds; not a measurement, it only ends a run that would never end

PRELUDE = """
import json, random, resource
resource.setrlimit(resource.RLIMIT_AS, (1024**3, 1024**3))
from app.errors import ValidationFailed
from app.job_types.payload_schema import PayloadSchema

def nested(depth, step, leaf=1):
    for _ in range(depth):
        leaf = step(leaf)
    return leaf

def lists(depth): return nested(depth, lambda inner: [inner])
def objects(depth): return nested(depth, lambda inner: {"a": inner})

def attack(schema, *payloads):
    try:
        compiled = PayloadSchema(json.dumps(schema).encode())
    except ValidationFailed:
        return
    for payload in payloads:
        try:
            compiled.check(json.dumps(payload, ensure_ascii=False).encode(), "")
        except ValidationFailed:
            pass

def refused(schema):
    try:
        PayloadSchema(json.dumps(schema).encode())
    except ValidationFailed:
        return
    raise AssertionError(f"accepted: {schema}")
"""

ATTACKS = {
    "definitions that double": """
for n in range(2, 30, 3):
    for keyword in ("allOf", "anyOf", "oneOf"):
        steps = {f"d{i}": {keyword: [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(n)}
        steps[f"d{n}"] = {"type": "string"}
        attack({"items": {"$ref": "#/$defs/d0"}, "$defs": steps}, [1], ["x"] * 50, ["x"] * 9000, [1] * 9000)
""",
    "rings": """
for n in range(1, 25, 2):
    steps = {f"d{i}": {"allOf": [{"items": {"$ref": f"#/$defs/d{(i + 1) % n}"}}] * 2} for i in range(n)}
    refused({"$ref": "#/$defs/d0", "$defs": steps})
    steps[f"d{n - 1}"] = {"type": "array"}
    attack({"$ref": "#/$defs/d0", "$defs": steps}, *[lists(depth) for depth in (5, 17, 30, 62)], [lists(20)] * 400)
    steps = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(n)}
    refused({"$ref": "#/$defs/d0", "$defs": {**steps, f"d{n}": {"items": {"$ref": "#/$defs/d0"}}}})
    attack(
        {"$ref": "#/$defs/d0", "$defs": {**steps, f"d{n}": {"items": {"type": "array"}}}},
        lists(1),
        lists(10),
        lists(62),
    )
""",
    "recursion": """
for branches in (2, 3, 10, 30, 100):
    for period in (1, 2, 5, 20):
        inner = nested(period, lambda schema: {"items": schema}, {"$ref": "#/$defs/node"})
        for keyword in ("allOf", "anyOf", "oneOf"):
            node = {keyword: [{**inner, "minItems": 1}] * branches}
            refused({"$ref": "#/$defs/node", "$defs": {"node": node}})
            for depth in (2, 3, 4, 10):
                nodes = {f"d{n}": json.loads(json.dumps(node).replace("node", f"d{n + 1}")) for n in range(depth)}
                attack(
                    {"$ref": "#/$defs/d0", "$defs": {**nodes, f"d{depth}": {"type": "string"}}},
                    *[lists(levels) for levels in (4, 9, 20, 41, 62)],
                    [lists(20)] * 30,
                    nested(4, lambda inner: [inner] * 9, 1),
                )
""",
    "recursion with late discrimination": """
def either(inner):
    branches = [
        {"type": "object", "properties": {"a": inner, "op": {"const": op}}, "required": ["op"]} for op in "abcdefgh"
    ]
    return {"oneOf": [*branches, {"type": "integer"}]}


refused({"$ref": "#/$defs/a", "$defs": {"a": either({"$ref": "#/$defs/a"})}})
for levels in (1, 2, 3):
    attack(nested(levels, either, {"type": "integer"}), *[objects(depth) for depth in (2, 5, 10, 62)])
""",
    "unevaluated": """
for n in range(2, 30, 3):
    for step in (
        lambda inner: {"anyOf": [inner], "unevaluatedProperties": False},
        lambda inner: {"if": inner, "then": True, "oneOf": [True], "unevaluatedProperties": {"not": {}}},
    ):
        schema = {"items": nested(n, step, {"properties": {"a": True}})}
        refused(schema)
        plain = json.dumps(schema).replace("unevaluatedProperties", "additionalProperties")
        attack(json.loads(plain), [{"a": 1}] * 100, [{"a": 1}] * 4000, [{"b": 1}])
again = {"$ref": "#/$defs/a"}
either = [
    {"properties": {"a": again}, "required": ["b"]},
    {"properties": {"a": again}, "unevaluatedProperties": False},
]
refused({"$defs": {"a": {"anyOf": either, "unevaluatedProperties": again}}, **again})
""",
    "numbers": """
payloads = [
    [10**60 + n for n in range(3900)],
    [1.2345678901234567e-300 * (1 + n / 9999) for n in range(9000)],
    [n + 0.5 for n in range(9000)],
    [5999.0] * 9000,
    [2**62 + n for n in range(9000)],
    [1.2345678901234567e300 / (1 + n) for n in range(9000)],
    [5e-324] * 100,
    [1.7976931348623157e308],
]
for schema in (
    {"minimum": 0.5},
    {"multipleOf": 0.01},
    {"multipleOf": 5e-324, "minimum": 1e-300, "maximum": 1e300},
    {"const": 7},
    {"const": 1e-300},
    {"enum": [n + 0.5 for n in range(2000)]},
    {"enum": [n + 0.5 for n in range(20)]},
    {"allOf": [{"minimum": 0.5}] * 50},
    {"enum": [*range(6000)]},
    {"allOf": [{"multipleOf": 7}] * 400},
    {"type": "integer"},
    {"multipleOf": 10**60 + 1},
    {"enum": [{"a": n} for n in range(500)]},
):
    attack({"items": schema}, *payloads, *[payload[:40] for payload in payloads])
attack(
    {"uniqueItems": True},
    *payloads,
    [{"a": 10**30 + n} for n in range(3000)],
    [[2**62 + n, 2**62 - n] for n in range(2000)],
)
attack({"allOf": [{"uniqueItems": True}] * 100}, *payloads)
short_lists = [[payload[n : n + 15] for n in range(0, len(payload), 15)] for payload in payloads]
attack({"items": {"uniqueItems": True}}, *short_lists, *[lists[:40] for lists in short_lists])
""",
    "patterns": """
random.seed(1)
text = "".join(random.choice("ax") for _ in range(250_000))
pieces = [text[n : n + 1000] for n in range(0, len(text), 1000)]
slow = (
    "a.{100}b",
    "a.{255}b",
    "a.{3000}b",
    "(?:.*a.{50}){3}b",
    "(a+)+b",
    "(a|a)*b",
    "(a.{10}b){40}",
    "[ax]*a[ax]{400}z",
    "(a?){500}b",
    "a.{ 255 }b",
    "(?x)(a.{10}) {25} b",
)
for pattern in slow:
    attack({"anyOf": [{"pattern": pattern}, True]}, text, text[:20_000])
    attack({"items": {"anyOf": [{"pattern": pattern}, True]}}, pieces)
    attack({"patternProperties": {pattern: True}}, dict.fromkeys(pieces, 1))
odd = (
    "[" * 60_000,
    "(" * 30_000,
    "(" * 30_000 + ")" * 30_000,
    "a?" * 30_000,
    "|" * 60_000,
    "a{9}" * 12_000,
    "a{999999999}" * 500,
)
for pattern in (
    *odd,
    chr(92),
    "a{" + "9" * 6000 + "}",
    nested(9, lambda inner: f"({inner}){{99}}", "a"),
    "(?<" + "a" * 60_000,
):
    attack({"pattern": pattern}, "a", text)
""",
    "errors": """
large = {f"k{n}": "x" * 50 for n in range(4000)}
attack({"required": [f"n{n}" for n in range(5000)]}, large, {})
attack({"items": {"required": [f"n{n}" for n in range(1000)]}}, [{}] * 5000, [{}] * 10)
options = [f"option number {n}" for n in range(2500)]
for schema in (
    {"enum": options},
    {"const": dict.fromkeys(options, 1)},
    {"not": {"enum": [*options, "x"]}},
    {"enum": ["y" * 60_000]},
):
    attack({"items": schema}, ["x"] * 100, ["x"] * 1000, ["x"] * 9000)
for keyword in ("allOf", "anyOf", "oneOf"):
    attack({keyword: [{"type": "integer"}] * 1000}, large, "x" * 250_000, {})
    attack({"items": {keyword: [{"required": [f"n{n}"]} for n in range(300)]}}, [{}] * 3000, [{}] * 30)
""",
    "sizes and depths": """
attack({"properties": {f"p{n}": True for n in range(4000)}}, {f"p{n}": 1 for n in range(4000)})


def chain(length, link, end):
    return {
        "$ref": "#/$defs/d0",
        "$defs": {**{f"d{n}": link({"$ref": f"#/$defs/d{n + 1}"}) for n in range(length)}, f"d{length}": end},
    }


links = (
    lambda following: following,
    lambda following: {"allOf": [following, True]},
    lambda following: {"anyOf": [{"type": "null"}, following]},
    lambda following: {"oneOf": [{"type": "null"}, following], "minItems": 0},
    lambda following: {"if": {"type": "null"}, "else": following},
    lambda following: {"not": {"not": following}},
    lambda following: {"items": following},
    lambda following: nested(58, lambda schema: {"items": schema}, following),
)
for link in links:
    for length in (10, 20, 30, 60, 100, 500, 1200):
        for end in ({"items": {"$ref": "#/$defs/d0"}, "type": "array"}, {"type": "array"}):
            attack(
                chain(length, link, end),
                *[lists(depth) for depth in (1, 3, 10, 62)],
                nested(62, lambda inner: [inner], []),
            )
attack(nested(60, lambda schema: {"not": schema}, True), lists(62))
media_type = {"contentMediaType": "application/json"}
for schema in (media_type, {"allOf": [media_type] * 500}):
    attack({"$schema": "http://json-schema.org/draft-07/schema#", **schema}, "[" * 120_000, json.dumps([[]] * 60_000))
""",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_process_survives_hostile_schemas_and_payloads(name: str, tmp_path: Path) -> None:
    script = tmp_path / "attack.py"
    script.write_text(PRELUDE + ATTACKS[name] + "\nprint('alive')\n")
    result = subprocess.run(
        [sys.executable, script],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert (result.returncode, result.stdout) == (0, "alive\n"), result.stderr[-2000:]
