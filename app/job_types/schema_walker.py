"""Finds the subschemas of a payload schema: which apply to the same value, and which to a child of
it. Pure.

References are resolved here as jsonschema-rs resolves them. Anything on which the two could
disagree is rejected: references to other documents, and a nested `$id`, which would move the root
that `#` refers to.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from urllib.parse import unquote

from app.errors import ValidationFailed

SCHEMA_POINTER = "/payload_schema"  # JSON pointer to the schema in the request
DRAFTS = (
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-04/schema",
)

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS = ("$anchor", "$dynamicAnchor")
_PERCENT = re.compile("%(?![0-9A-Fa-f]{2})")


class _AppliesTo(Enum):
    """The value that a subschema applies to."""

    SAME = auto()
    NAMED_CHILD = auto()
    ANY_CHILD = auto()
    NOTHING = auto()  # it is only the target of references


_SUBSCHEMA_KEYWORDS = {
    **dict.fromkeys(
        ("not", "if", "then", "else", "allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies"), _AppliesTo.SAME
    ),
    **dict.fromkeys(("properties", "prefixItems"), _AppliesTo.NAMED_CHILD),
    **dict.fromkeys(
        ("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames"), _AppliesTo.ANY_CHILD
    ),
    **dict.fromkeys(("items", "additionalItems", "unevaluatedItems", "contains"), _AppliesTo.ANY_CHILD),
    **dict.fromkeys(("$defs", "definitions", "contentSchema"), _AppliesTo.NOTHING),
}
_MAP_KEYWORDS = ("properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions")


@dataclass(slots=True)
class Subschema:
    """A subschema, with pointers to the schemas that it applies: to its own value, or to a child of
    it.
    """

    pointer: str
    keywords: dict[str, object]  # empty if the schema is a boolean
    same_value: list[str] = field(default_factory=list)
    named_children: dict[str, list[str]] = field(default_factory=dict)
    any_child: list[str] = field(default_factory=list)

    def applied_pointers(self) -> Iterator[str]:
        yield from self.same_value
        for pointers in self.named_children.values():
            yield from pointers
        yield from self.any_child


def subschemas(schema: object) -> dict[str, Subschema]:
    """All subschemas by pointer, the root first."""
    return _SchemaWalk(schema).run()


def schema_fault(pointer: str, detail: str) -> ValidationFailed:
    return ValidationFailed.at(SCHEMA_POINTER + pointer, detail)


def escape_pointer_step(step: str | int) -> str:
    """Escapes one step of a JSON pointer (RFC 6901)."""
    return str(step).replace("~", "~0").replace("/", "~1")


class _SchemaWalk:
    def __init__(self, schema: object) -> None:
        self._root = schema
        self._subschemas: dict[str, Subschema] = {}
        self._anchors: dict[str, str] = {}
        self._pending: list[tuple[str, object]] = [("", schema)]
        self._references: list[tuple[Subschema, str, str]] = []

    def run(self) -> dict[str, Subschema]:
        """Reads all subschemas before any reference, because an anchor may follow the reference to
        it.

        Targets of references that are not known to be schemas are read afterwards.
        """
        while self._pending or self._references:
            if self._pending:
                self._read(*self._pending.pop())
            else:
                self._follow(*self._references.pop())
        return self._subschemas

    def _read(self, pointer: str, schema: object) -> None:
        if pointer in self._subschemas:
            return
        subschema = self._subschemas[pointer] = Subschema(pointer, schema if isinstance(schema, dict) else {})
        self._read_identifiers(subschema)
        for keyword, value in subschema.keywords.items():
            if keyword in _REFERENCES and isinstance(value, str):
                self._references.append((subschema, keyword, value))
            if keyword in _SUBSCHEMA_KEYWORDS:
                self._apply(subschema, keyword, value)

    def _read_identifiers(self, subschema: Subschema) -> None:
        keywords = subschema.keywords
        if subschema.pointer:
            _check_no_identifier(subschema.pointer, keywords)
        else:
            _check_root(keywords)
        for keyword in _ANCHORS:
            name = keywords.get(keyword)
            if isinstance(name, str) and self._anchors.setdefault(name, subschema.pointer) != subschema.pointer:
                raise schema_fault(f"{subschema.pointer}/{keyword}", f"duplicate anchor {name[:80]}")

    def _apply(self, subschema: Subschema, keyword: str, value: object) -> None:
        for step, inner in _inner_schemas(keyword, value):
            if not isinstance(inner, dict | bool):
                continue
            suffix = "" if step is None else f"/{escape_pointer_step(step)}"
            pointer = f"{subschema.pointer}/{escape_pointer_step(keyword)}{suffix}"
            self._pending.append((pointer, inner))
            match _SUBSCHEMA_KEYWORDS[keyword], step:
                case _AppliesTo.SAME, _:
                    subschema.same_value.append(pointer)
                case (_AppliesTo.NAMED_CHILD, str()) | (_AppliesTo.ANY_CHILD, int()):
                    subschema.named_children.setdefault(str(step), []).append(pointer)
                case ((_AppliesTo.NAMED_CHILD | _AppliesTo.ANY_CHILD), _):
                    subschema.any_child.append(pointer)

    def _follow(self, subschema: Subschema, keyword: str, reference: str) -> None:
        source = f"{subschema.pointer}/{keyword}"
        if not reference.startswith("#"):
            raise schema_fault(source, "only references within the schema are allowed: they begin with #")
        target = self._target(reference[1:], source)
        if target not in self._subschemas:
            self._pending.append((target, self._resolve(target, source)))
        subschema.same_value.append(target)

    def _target(self, fragment: str, source: str) -> str:
        """The pointer that a fragment refers to."""
        if _PERCENT.search(fragment):
            raise schema_fault(source, "percent sign without two hexadecimal digits")
        plain = unquote(fragment, errors="replace")
        if not plain or plain.startswith("/"):
            return plain
        if plain not in self._anchors:
            raise schema_fault(source, "no such anchor")
        return self._anchors[plain]

    def _resolve(self, pointer: str, source: str) -> object:
        """The schema at a pointer that no keyword marks as a schema, such as
        `#/components/schemas/x`.
        """
        value, steps = self._root, pointer.split("/")[1:]
        for step in steps:
            found = _step(value, step.replace("~1", "/").replace("~0", "~"))
            if isinstance(value, dict) and value is not self._root:
                _check_no_identifier(source, value)
            if not found:
                raise schema_fault(source, "the reference points to nothing")
            value = found[0]
        if not isinstance(value, dict | bool):
            raise schema_fault(source, "the reference does not point to a schema")
        return value


def _inner_schemas(keyword: str, value: object) -> Iterable[tuple[str | int | None, object]]:
    """The schemas of a keyword that takes one schema, a list or a map."""
    if keyword in _MAP_KEYWORDS:
        return value.items() if isinstance(value, dict) else ()
    return enumerate(value) if isinstance(value, list) else [(None, value)]


def _step(value: object, step: str) -> list[object]:
    """The value at one step of a pointer, in a list; empty if there is none."""
    if isinstance(value, dict):
        return [value[step]] if step in value else []
    if isinstance(value, list) and step.isdecimal() and str(int(step)) == step:
        return value[int(step) : int(step) + 1]
    return []


def _check_root(keywords: dict[str, object]) -> None:
    draft = keywords.get("$schema", DRAFTS[0])
    if not isinstance(draft, str) or draft.removesuffix("#") not in DRAFTS:
        raise schema_fault("/$schema", f"$schema must be one of {', '.join(DRAFTS)}")
    for name in ("$id", "id"):
        identifier = keywords.get(name)
        if isinstance(identifier, str) and "json-schema.org" in identifier.lower():
            raise schema_fault(f"/{name}", f"{name} must not be a meta-schema of JSON Schema")


def _check_no_identifier(pointer: str, keywords: dict[str, object]) -> None:
    for name in ("$id", "id", "$schema"):
        if isinstance(keywords.get(name), str):
            raise schema_fault(f"{pointer}/{name}", f"only the root schema may have {name}")
