"""The subset of JSON Schema that a payload schema may use; docs/guides/job-types.md lists it.

Recursion, `unevaluatedProperties` and `unevaluatedItems` are excluded, because they make the work
of a validation exponential. Without them, the work for one value of a payload has a bound: the sum
of the work of all schemas that apply to the value, and to the lists and objects around it.
`measure` calculates this sum, without I/O. Measurements with jsonschema-rs 0.60:

- Comparing a number with 7 takes 20 ns, and with 0.5 it takes 2 µs. If one of the two numbers is
  1e-300, the comparison takes 40 µs.
- Matching a pattern takes up to 9 ns for each of its characters and each byte of text.
- `uniqueItems` compares all pairs of up to 15 items. Of more items, it compares those with equal
  hashes.
- Reporting 300 errors for each of 3,000 values takes 9 s.
- A chain of 5,000 `anyOf` overflows a stack of 4 MiB.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple
from urllib.parse import unquote

from app.errors import ValidationFailed
from app.http.json_pointer import escape_pointer_step

SCHEMA_POINTER = "/payload_schema"  # JSON pointer to the schema in the request
DRAFTS = (
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-04/schema",
)
MAX_CHECKS = 2_500  # these take a second for a payload of 10,000 values
MAX_STEPS = 250_000  # with more, a payload of a hundred values could no longer be validated
MAX_PATTERN_SIZE = 4_000  # all patterns together; `\p{L}{1,64}` has 1,024 and takes 30 ms to compile

_NOT_APPLIED_KEYWORDS = ("$defs", "definitions", "contentSchema")
# One of these applies to each child of a value.
_CHILD_KEYWORDS = ("properties", "additionalProperties", "prefixItems", "items", "additionalItems")
_MAP_KEYWORDS = ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas", "dependencies")
_OTHER_KEYWORDS = ("propertyNames", "contains", "not", "if", "then", "else", "allOf", "anyOf", "oneOf")
_SCHEMA_KEYWORDS = {*_NOT_APPLIED_KEYWORDS, *_CHILD_KEYWORDS, *_MAP_KEYWORDS, *_OTHER_KEYWORDS}
_DEFINITION = re.compile(r"(/(\$defs|definitions)/[^/]*)?")  # also matches the root, ""
_REFERENCE_DETAIL = "only $ref to a definition of the root schema is supported: #/$defs/name or #/definitions/name"
REFUSED_KEYWORDS = {
    "unevaluatedProperties": "unevaluatedProperties is not supported: use additionalProperties",
    "unevaluatedItems": "unevaluatedItems is not supported: use prefixItems, items or maxItems",
    **dict.fromkeys(("$dynamicRef", "$recursiveRef"), _REFERENCE_DETAIL),
    **dict.fromkeys(
        ("$anchor", "$dynamicAnchor", "$recursiveAnchor"), f"anchors are not supported: {_REFERENCE_DETAIL}"
    ),
}

_STEPS = dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), 40)
_STEPS |= {"multipleOf": 1_000, "uniqueItems": 200, "contentMediaType": 20}
_STEPS_PER_PATTERN_CHARACTER = 20  # for each 64 bytes of text
_UNICODE_CLASS = "(" + 16 * "a" + ")"  # as large as a compiled `\p{L}`
# Takes an unterminated class or name up to the end of the pattern, because otherwise a pattern of
# 60,000 `[` takes 90 s.
_CHARACTER = re.compile(r"\\[pPu]\{[^}]*+(?:\}|\Z)|\\[pP]?.|\[(?:\\.|[^\]\\])*+(?:\]|\Z)", re.DOTALL)
_TOKEN = re.compile(r"\{\s*(\d{1,9})\s*(?:,\s*(\d{0,9})\s*)?\}|(.)", re.DOTALL)
_VERBOSE_FLAG = re.compile(r"\(\?[a-zA-Z-]*x")

Schema = dict[str, Any]


class Work(NamedTuple):
    """Upper bounds of the work that a schema causes for each value of a payload.

    `checks` bounds the work of reporting errors, because each failed check is an error. `steps`
    bounds the time of the validation: a step takes about 40 ns.
    """

    checks: int
    steps: int


def measure(schema: object) -> Work:
    """Calculates the work of a schema for each value of a payload.

    If the schema is not in the subset or takes too much work, raises ValidationFailed with a
    pointer to the invalid part.
    """
    found = dict(subschemas(schema))
    _check_root(found[""])
    for pointer, subschema in found.items():
        _check_keywords(pointer, subschema)
    _check_patterns(found)
    works: dict[str, Work] = {}
    for pointer in _topological_order(_references(found)):
        works[pointer] = _work(found[pointer], works)
        _check_work(pointer, works[pointer])
    return works[""]


def subschemas(schema: object, pointer: str = "") -> Iterator[tuple[str, Schema]]:
    """Yields the schema and all schemas inside it, with their pointers, the root first. A boolean
    counts as a schema without keywords."""
    if isinstance(schema, dict | bool):
        keywords = schema if isinstance(schema, dict) else {}
        yield pointer, keywords
        for _, step, inner in _inner_schemas(keywords):
            yield from subschemas(inner, pointer + step)


def pattern_size(pattern: str) -> int:
    """Calculates an upper bound of the size of a pattern: the number of its characters after its
    repetitions are written out. `*` and `+` count as one repetition, `{n,}` counts as n. The size
    of `(ab{3}){2}|c` is 9."""
    groups, last = [0], 0
    for minimum, maximum, character in _TOKEN.findall(_CHARACTER.sub(_simplify, pattern)):
        if minimum:
            times = max(1, int(minimum), int(maximum or 0))
            groups[-1] += last * (times - 1)
            last *= times
        elif character == "(":
            groups.append(0)
        elif character == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] += last
        elif character not in "|*+?":
            groups[-1] += 1
            last = 1
    return sum(groups)


def schema_fault(pointer: str, detail: str) -> ValidationFailed:
    return ValidationFailed.at(SCHEMA_POINTER + pointer, detail)


def _inner_schemas(schema: Schema) -> Iterator[tuple[str, str, object]]:
    """Yields the schemas directly inside a schema, each with its keyword and its relative pointer.
    The value of a keyword is one schema, or a list or a map of schemas."""
    for keyword in filter(_SCHEMA_KEYWORDS.__contains__, schema):
        value: Any = schema[keyword]
        if keyword in _MAP_KEYWORDS:
            inner: Iterable[tuple[str | int, object]] = value.items() if isinstance(value, dict) else ()
        elif isinstance(value, list):
            inner = enumerate(value)
        else:
            inner = ()
            yield keyword, f"/{keyword}", value
        for step, subschema in inner:
            yield keyword, f"/{keyword}/{escape_pointer_step(step)}", subschema


def _check_root(schema: Schema) -> None:
    draft = schema.get("$schema", DRAFTS[0])
    if not isinstance(draft, str) or draft.removesuffix("#") not in DRAFTS:
        raise schema_fault("/$schema", f"$schema must be one of {', '.join(DRAFTS)}")
    for keyword in ("$id", "id"):
        if "json-schema.org" in str(schema.get(keyword)).lower():
            raise schema_fault(f"/{keyword}", f"{keyword} must not be a meta-schema of JSON Schema")


def _check_keywords(pointer: str, schema: Schema) -> None:
    for keyword, value in schema.items():
        if keyword in REFUSED_KEYWORDS:
            raise schema_fault(f"{pointer}/{keyword}", REFUSED_KEYWORDS[keyword])
        if pointer and keyword in ("$id", "id", "$schema") and isinstance(value, str):
            raise schema_fault(f"{pointer}/{keyword}", f"only the root schema may have {keyword}")


def _references(found: Mapping[str, Schema]) -> dict[str, dict[str, str]]:
    """Returns the references to definitions, from the root and from definitions. Raises
    ValidationFailed for a reference to anything else.

    The result maps the pointer of each source to its targets, and the pointer of each target to the
    pointer of the `$ref`.
    """
    references: dict[str, dict[str, str]] = {pointer: {} for pointer in found if _DEFINITION.fullmatch(pointer)}
    for pointer, schema in found.items():
        if (target := _target(schema)) is None:
            continue
        if not target or target not in references:
            raise schema_fault(f"{pointer}/$ref", _REFERENCE_DETAIL)
        definition = "/".join(pointer.split("/")[:3])
        references[definition if definition in references else ""][target] = f"{pointer}/$ref"
    return references


def _target(schema: Schema) -> str | None:
    """Returns the pointer to which a schema refers, or None if it has no `$ref`. The pointer is
    empty if the schema refers to the root or to another document."""
    reference = schema.get("$ref")
    if not isinstance(reference, str):
        return None
    return unquote(reference[1:]) if reference.startswith("#") else ""


def _topological_order(references: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Returns the root and the definitions, each after the definitions to which it refers."""
    try:
        return list(TopologicalSorter(references).static_order())
    except CycleError as error:
        target, source = error.args[1][:2]
        raise schema_fault(
            references[source][target], "recursion is not supported: this reference leads back to itself"
        ) from None


def _check_patterns(found: Mapping[str, Schema]) -> None:
    pointers = {pattern: f"{pointer}{step}" for pointer in found for step, pattern in _patterns(found[pointer])}
    total = 0
    for pattern, pointer in pointers.items():
        total += pattern_size(pattern)
        if total > MAX_PATTERN_SIZE:
            detail = f"the patterns together may have {MAX_PATTERN_SIZE} characters, with repetitions written out"
            raise schema_fault(pointer, detail)
        if _VERBOSE_FLAG.search(pattern):
            raise schema_fault(pointer, "the flag x is not supported: it hides repetitions")


def _patterns(schema: Schema) -> Iterator[tuple[str, str]]:
    if isinstance(pattern := schema.get("pattern"), str):
        yield "/pattern", pattern
    for name in _map(schema, "patternProperties"):
        yield f"/patternProperties/{escape_pointer_step(name)}", name


def _simplify(character: re.Match[str]) -> str:
    return _UNICODE_CLASS if r"\p" in character[0].lower() else "a"


def _check_work(pointer: str, work: Work) -> None:
    if work.checks > MAX_CHECKS:
        raise schema_fault(
            pointer,
            f"at most {MAX_CHECKS} keywords, required names and options may apply to one value; "
            "nested allOf, anyOf, oneOf and references multiply them",
        )
    if work.steps > MAX_STEPS:
        raise schema_fault(pointer, "too many patterns, multipleOf, or numbers in enum and const apply to one value")


def _work(schema: object, works: Mapping[str, Work]) -> Work:
    """Adds up the work of a schema, of the schemas inside it, and of the schema of its `$ref`.

    Of the schemas for properties and items, only the one with the most work counts, because only
    one of them applies to a given property or item. `works` has the work of the definitions.
    """
    if not isinstance(schema, dict):
        return Work(1, 1)
    children, applied = [Work(0, 0)], [_keyword_work(schema)]
    for keyword, _, inner in _inner_schemas(schema):
        if keyword not in _NOT_APPLIED_KEYWORDS:
            (children if keyword in _CHILD_KEYWORDS else applied).append(_work(inner, works))
    if (target := _target(schema)) is not None:
        applied.append(works[target])
    applied.append(Work(*map(max, zip(*children, strict=True))))
    return Work(*map(sum, zip(*applied, strict=True)))


def _keyword_work(schema: Schema) -> Work:
    """Calculates the `Work` of a schema's keywords, without the schemas inside it.

    - The values of `enum`, `const` and `not` add to `checks`, because every error copies them: a
      thousand errors about an `enum` with 2,500 options took 400 MB.
    - The values of `enum` and `const` add to `steps`. A `7.0` or a number of more than 64 bits in
      the payload is compared with each of them: 9,000 such numbers took 31 s with an `enum` of
      6,000 integers.
    """
    lists = [
        schema.get("required"),
        *_map(schema, "dependentRequired").values(),
        *_map(schema, "dependencies").values(),
    ]
    checks = 1 + len(schema) + sum(len(names) for names in lists if isinstance(names, list))
    copied = _values([schema[keyword] for keyword in ("enum", "const", "not") if keyword in schema])
    copies = sum(1 + len(value) // 64 if isinstance(value, str) else 1 for value in copied)
    compared = _values([schema[keyword] for keyword in ("enum", "const") if keyword in schema])
    steps = checks + sum(_STEPS.get(keyword, 0) for keyword in schema) + sum(map(_comparison_steps, compared))
    steps += sum(_STEPS_PER_PATTERN_CHARACTER * pattern_size(pattern) for _, pattern in _patterns(schema))
    return Work(checks + copies // 4, steps)


def _comparison_steps(value: object) -> int:
    if not isinstance(value, int | float):
        return 1
    return 40 if value == 0 or 1e-9 < abs(value) < 1e20 else 800


def _values(values: Iterable[object]) -> Iterator[object]:
    """Yields the values and, at any depth, the values inside lists and objects."""
    for value in values:
        yield value
        if isinstance(value, dict | list):
            yield from _values(value.values() if isinstance(value, dict) else value)


def _map(schema: Schema, keyword: str) -> Schema:
    value = schema.get(keyword)
    return value if isinstance(value, dict) else {}
