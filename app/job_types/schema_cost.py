"""How much work a payload schema can make, at most, for each value of a payload: known before the schema is used. Pure.

jsonschema-rs does not panic (on 100,000 random schemas and payloads), but it can be made to overflow the stack, or to work for ever.
Measured with 0.60: twenty definitions, each `allOf` of two references to the next, take 20 ms for one value, and each further one doubles
that; nested `unevaluatedProperties` grow by 2.6 with each level; a pattern like `a.{255}b` takes 5 µs per byte; a comparison takes 20 ns
with 7 and 30 µs with 1e-300. Recursion is remembered, per value and reference, from the second or third time round, by `is_valid` only.
So we count steps of about 50 ns along the worst path through the schema. What does not end is refused.
"""

from collections.abc import Callable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

from app.job_types.regex_size import regex_size
from app.job_types.schema_walker import Subschema, schema_fault, subschemas

MAX_STEPS = 25_000_000  # about a second
MAX_COST = MAX_STEPS // 100  # with more, not even a payload of a hundred values could be checked
MAX_LINKS = 64  # of schemas for the same value; 500, with a payload 62 deep, overflowed the stack
MAX_BULK = 4_000  # of all patterns together; `\p{L}{1,64}` is 1,024 and takes 30 ms to compile

_LAPS = 3  # after which recursion is remembered
_REMEMBERED = 2
_UNIQUE = 60  # nested lists can be made to collide when they are hashed: so many comparisons for each value
_PER_POSITION = 20  # of a pattern, for each 64 bytes
_PROPERTY_OF_UNICODE = 16  # times as large as another character, when compiled
_EXACT = 2**53

_DIVIDED = 100  # a whole `multipleOf` of a fraction takes up to 5 µs
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_MARKING = {"unevaluatedProperties", "unevaluatedItems"}

Pointer = str
Own = Mapping[Pointer, int]
Steps = set[tuple[Pointer, Pointer]]


class SchemaCost:
    """`cost`: steps for each value of a payload. `plain`: without recursion and alternatives, where the first error is found alone."""

    def __init__(self, schema: object) -> None:
        self._places = subschemas(schema)
        _refuse_endless(self._places)
        self._order, self._back = _ordered(self._places)
        used = [self._places[pointer] for pointer in self._order]
        _check_patterns(used)
        self.unique = any(place.keywords.get("uniqueItems") is True for place in used)
        self.plain = not self._back and not any(place.keywords.keys() & {"anyOf", "oneOf"} for place in used)
        self.cost = self._cost()
        if self.cost > MAX_COST:
            raise schema_fault(
                "",
                f"more than {MAX_COST} steps for each value of a payload: too many references, or too large patterns",
            )

    def faults(self, depth: int) -> int:
        """How many errors each value of a payload of this depth can have. Nothing is remembered while they are collected."""
        return self._round(_faults_of, depth + 1 if self._back else 1).totals[""]

    def _cost(self) -> int:
        """What is remembered was done once, for each value and each place that recursion comes back to."""
        once = self._round(_cost_of, 1).totals
        return self._round(_cost_of, _LAPS).totals[""] + sum(
            once[target] for target in {target for _, target in self._back}
        )

    def _round(self, own: Callable[[Subschema], int], laps: int) -> "_Lap":
        owns = {pointer: own(self._places[pointer]) for pointer in self._order}
        lap = _Lap(self._back, {}, {})
        for _ in range(laps if self._back else 1):
            lap = _Lap(self._back, lap.totals, lap.marks)
            for pointer in self._order:
                lap.add(self._places[pointer], owns[pointer])
        return lap


class _Lap:
    """What each place comes to, if recursion that goes back comes to what it did in the lap before."""

    def __init__(self, back: Steps, totals_before: Own, marks_before: Own) -> None:
        self._back = back
        self._totals_before = totals_before
        self._marks_before = marks_before
        self.totals: dict[Pointer, int] = {}
        self.marks: dict[Pointer, int] = {}

    def add(self, place: Subschema, own: int) -> None:
        """A child has one name: of the schemas for named children only the heaviest counts."""
        same = sum(self._total(place, pointer) for pointer in place.same)
        named = max(
            (sum(self._total(place, pointer) for pointer in group) for group in place.named.values()), default=0
        )
        any_child = sum(self._total(place, pointer) for pointer in place.any_child)
        marks = same + sum(self._mark(place, pointer) for pointer in place.same)
        self.marks[place.pointer] = marks
        self.totals[place.pointer] = own + same + named + any_child + (marks if place.keywords.keys() & _MARKING else 0)

    def _total(self, place: Subschema, pointer: Pointer) -> int:
        if (place.pointer, pointer) in self._back:
            return self._totals_before.get(pointer, _REMEMBERED)
        return self.totals[pointer]

    def _mark(self, place: Subschema, pointer: Pointer) -> int:
        """`unevaluated...` applies everything once more to find out what has been evaluated, and once more at each level below."""
        if (place.pointer, pointer) in self._back:
            return self._marks_before.get(pointer, _REMEMBERED)
        return self.marks[pointer]


def _refuse_endless(found: Mapping[Pointer, Subschema]) -> None:
    """A reference that comes back to where it started without a step into the value says nothing, and could go on for ever. A chain that
    does end must not be long: the validator calls itself for each link and each level of the value."""
    links: dict[Pointer, int] = {}
    try:
        for pointer in TopologicalSorter({pointer: place.same for pointer, place in found.items()}).static_order():
            links[pointer] = 1 + max((links[inner] for inner in found[pointer].same), default=0)
    except CycleError as error:
        raise schema_fault(error.args[1][0], "a reference that leads back to itself for the same value") from None
    if max(links.values()) > MAX_LINKS:
        raise schema_fault(
            max(links, key=links.__getitem__), f"a chain of more than {MAX_LINKS} schemas for the same value"
        )


def _ordered(found: Mapping[Pointer, Subschema]) -> tuple[list[Pointer], Steps]:
    """The places that are used, each after those that it applies; and the steps by which recursion goes back."""
    order: list[Pointer] = []
    back: Steps = set()
    path: list[tuple[Pointer, Iterator[Pointer]]] = [("", found[""].applied())]
    entered, on_path = {""}, {""}
    while path:
        at, left = path[-1]
        inner = next(left, None)
        if inner is None:
            path.pop()
            on_path.remove(at)
            order.append(at)
        elif inner in on_path:
            back.add((at, inner))
        elif inner not in entered:
            entered.add(inner)
            on_path.add(inner)
            path.append((inner, found[inner].applied()))
    return order, back


def _check_patterns(used: list[Subschema]) -> None:
    patterns = {pattern for place in used for pattern in _patterns_of(place)}
    bulk = sum(regex_size(pattern) * (_PROPERTY_OF_UNICODE if r"\p" in pattern.lower() else 1) for pattern in patterns)
    if bulk > MAX_BULK:
        raise schema_fault(
            "", f"patterns that are longer than {MAX_BULK} characters when their repetitions are written out"
        )


def _patterns_of(place: Subschema) -> list[str]:
    own, of_names = place.keywords.get("pattern"), place.keywords.get("patternProperties")
    return [*([own] if isinstance(own, str) else []), *(of_names if isinstance(of_names, dict) else [])]


def _faults_of(place: Subschema) -> int:
    """As many errors as a schema can have by itself, or more. Each comes with a copy of what was asked for: a thousand errors of an `enum`
    with 2,500 options took 400 MB."""
    return _length(place) + sum(
        _size(place.keywords[name]) // 4 for name in ("enum", "const", "not") if name in place.keywords
    )


def _size(value: object) -> int:
    """Values in it; a long text counts as several."""
    if isinstance(value, dict | list):
        return 1 + sum(map(_size, value.values() if isinstance(value, dict) else value))
    return 1 + len(value) // 64 if isinstance(value, str) else 1


def _length(place: Subschema) -> int:
    """How many things a schema looks at."""
    keywords = place.keywords
    lists = [
        keywords.get("required"),
        *_values(keywords.get("dependentRequired")),
        *_values(keywords.get("dependencies")),
    ]
    return 1 + len(keywords) + sum(len(names) for names in lists if isinstance(names, list))


def _cost_of(place: Subschema) -> int:
    """Steps for a schema's own keywords: one each, and more for those that take longer."""
    keywords = place.keywords
    return (
        _length(place)
        + len(_values(keywords.get("properties")))
        + sum(_number(keywords[name]) for name in _NUMBERS if name in keywords)
        + (_DIVIDED if "multipleOf" in keywords else 0)
        + (_compared(keywords["const"]) if "const" in keywords else 0)
        + _listed(keywords.get("enum"))
        + (_UNIQUE if keywords.get("uniqueItems") is True else 0)
        + sum(_PER_POSITION * regex_size(pattern) for pattern in _patterns_of(place))
    )


def _values(value: object) -> list[object]:
    return list(value.values()) if isinstance(value, dict) else []


def _number(value: object) -> int:
    """Fractions and large numbers are compared as fractions of any precision, in up to 40 µs."""
    if isinstance(value, int) and abs(value) < _EXACT:
        return 2
    return 40 if isinstance(value, int | float) and 1e-20 < abs(value) < 1e20 else 400


def _listed(options: object) -> int:
    """Texts are looked up; a list with anything else in it is gone through: whole numbers too, when the payload has `7.0` or a number
    beyond 64 bits (9,000 of them took 31 s with 6,000 options)."""
    if not isinstance(options, list):
        return 0
    looked_up = all(option is None or isinstance(option, str | bool) for option in options)
    return 30 if looked_up else sum(_compared(option) for option in options)


def _compared(value: object) -> int:
    if isinstance(value, dict | list):
        return 4 + sum(4 + _compared(item) for item in (value.values() if isinstance(value, dict) else value))
    return max(30, _number(value)) if isinstance(value, int | float) else 1
