"""The schemas inside a payload schema: where they stand, which of them see the same value, and which see a child of it. Pure.

References are followed here as jsonschema-rs will follow them, so whatever would make the two disagree is refused: other documents,
and an `$id` further in, which would move the root that `#` stands for.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from urllib.parse import unquote

from app.errors import ValidationFailed

AT = "/payload_schema"  # where the schema stands in the request
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


class _Sees(Enum):
    """Which value a schema inside another one is applied to."""

    SAME = auto()
    NAMED_CHILD = auto()
    ANY_CHILD = auto()
    NOTHING = auto()  # it is only there to be referred to


_INNER = {
    **dict.fromkeys(
        ("not", "if", "then", "else", "allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies"), _Sees.SAME
    ),
    **dict.fromkeys(("properties", "prefixItems"), _Sees.NAMED_CHILD),
    **dict.fromkeys(
        ("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames"), _Sees.ANY_CHILD
    ),
    **dict.fromkeys(("items", "additionalItems", "unevaluatedItems", "contains"), _Sees.ANY_CHILD),
    **dict.fromkeys(("$defs", "definitions", "contentSchema"), _Sees.NOTHING),
}
_MAPS = ("properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions")


@dataclass(slots=True)
class Subschema:
    """A schema inside the schema, with pointers to those that it applies: to the value it sees itself, or to a child of it."""

    pointer: str
    keywords: dict[str, object]  # none, if the schema is a boolean
    same: list[str] = field(default_factory=list)
    named: dict[str, list[str]] = field(default_factory=dict)
    any_child: list[str] = field(default_factory=list)

    def applied(self) -> Iterator[str]:
        yield from self.same
        for pointers in self.named.values():
            yield from pointers
        yield from self.any_child


def subschemas(schema: object) -> dict[str, Subschema]:
    """By pointer, the root first."""
    return _Walk(schema).finished()


def schema_fault(pointer: str, why: str) -> ValidationFailed:
    return ValidationFailed.at(AT + pointer, why)


def escaped(step: str | int) -> str:
    """A step of a JSON pointer (RFC 6901)."""
    return str(step).replace("~", "~0").replace("/", "~1")


class _Walk:
    def __init__(self, schema: object) -> None:
        self._root = schema
        self._found: dict[str, Subschema] = {}
        self._anchors: dict[str, str] = {}
        self._unread: list[tuple[str, object]] = [("", schema)]
        self._references: list[tuple[Subschema, str, str]] = []

    def finished(self) -> dict[str, Subschema]:
        """References wait until all is read: an anchor may stand behind them. What they lead to may be read only then."""
        while self._unread or self._references:
            if self._unread:
                self._read(*self._unread.pop())
            else:
                self._follow(*self._references.pop())
        return self._found

    def _read(self, pointer: str, schema: object) -> None:
        if pointer in self._found:
            return
        place = self._found[pointer] = Subschema(pointer, schema if isinstance(schema, dict) else {})
        self._identify(place)
        for keyword, value in place.keywords.items():
            if keyword in _REFERENCES and isinstance(value, str):
                self._references.append((place, keyword, value))
            if keyword in _INNER:
                self._apply(place, keyword, value)

    def _identify(self, place: Subschema) -> None:
        keywords = place.keywords
        if place.pointer:
            _check_no_resource(place.pointer, keywords)
        else:
            _check_root(keywords)
        for keyword in _ANCHORS:
            name = keywords.get(keyword)
            if isinstance(name, str) and self._anchors.setdefault(name, place.pointer) != place.pointer:
                raise schema_fault(f"{place.pointer}/{keyword}", f"there is another anchor named {name[:80]}")

    def _apply(self, place: Subschema, keyword: str, value: object) -> None:
        for step, inner in _parts(keyword, value):
            if not isinstance(inner, dict | bool):
                continue
            pointer = f"{place.pointer}/{escaped(keyword)}" + ("" if step is None else f"/{escaped(step)}")
            self._unread.append((pointer, inner))
            match _INNER[keyword], step:
                case _Sees.SAME, _:
                    place.same.append(pointer)
                case (_Sees.NAMED_CHILD, str()) | (_Sees.ANY_CHILD, int()):
                    place.named.setdefault(str(step), []).append(pointer)
                case ((_Sees.NAMED_CHILD | _Sees.ANY_CHILD), _):
                    place.any_child.append(pointer)

    def _follow(self, place: Subschema, keyword: str, reference: str) -> None:
        at = f"{place.pointer}/{keyword}"
        if not reference.startswith("#"):
            raise schema_fault(at, "references stay within the schema: they begin with #")
        target = self._target(reference[1:], at)
        if target not in self._found:
            self._unread.append((target, self._at(target, at)))
        place.same.append(target)

    def _target(self, fragment: str, at: str) -> str:
        """The pointer that a fragment stands for."""
        if _PERCENT.search(fragment):
            raise schema_fault(at, "a percent sign without two hexadecimal digits")
        plain = unquote(fragment, errors="replace")
        if not plain or plain.startswith("/"):
            return plain
        if plain not in self._anchors:
            raise schema_fault(at, "there is no such anchor")
        return self._anchors[plain]

    def _at(self, pointer: str, at: str) -> object:
        """What stands at a pointer to none of the places that are known to be schemas, such as `#/components/schemas/x`."""
        here, steps = self._root, pointer.split("/")[1:]
        for step in steps:
            found = _stepped(here, step.replace("~1", "/").replace("~0", "~"))
            if isinstance(here, dict) and here is not self._root:
                _check_no_resource(at, here)
            if not found:
                raise schema_fault(at, "there is nothing there")
            here = found[0]
        if not isinstance(here, dict | bool):
            raise schema_fault(at, "there is no schema there")
        return here


def _parts(keyword: str, value: object) -> Iterable[tuple[str | int | None, object]]:
    """The schemas of a keyword that has one of them, or a list, or a map."""
    if keyword in _MAPS:
        return value.items() if isinstance(value, dict) else ()
    return enumerate(value) if isinstance(value, list) else [(None, value)]


def _stepped(value: object, step: str) -> list[object]:
    """One thing, or none."""
    if isinstance(value, dict):
        return [value[step]] if step in value else []
    if isinstance(value, list) and step.isdecimal() and str(int(step)) == step:
        return value[int(step) : int(step) + 1]
    return []


def _check_root(keywords: dict[str, object]) -> None:
    draft = keywords.get("$schema", DRAFTS[0])
    if not isinstance(draft, str) or draft.removesuffix("#") not in DRAFTS:
        raise schema_fault("/$schema", f"one of {', '.join(DRAFTS)}")
    for name in ("$id", "id"):
        own = keywords.get(name)
        if isinstance(own, str) and "json-schema.org" in own.lower():
            raise schema_fault(f"/{name}", "that is a schema of JSON Schema itself")


def _check_no_resource(pointer: str, keywords: dict[str, object]) -> None:
    for name in ("$id", "id", "$schema"):
        if isinstance(keywords.get(name), str):
            raise schema_fault(f"{pointer}/{name}", "only the outermost schema may have one")
