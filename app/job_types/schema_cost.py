"""Upper bound of the work that a payload schema can cause for each value of a payload. Pure.

jsonschema-rs did not panic on 100,000 random schemas and payloads, but a schema can make it
overflow the stack or run forever. Measured with 0.60:

- Twenty definitions, each `allOf` of two references to the next, take 20 ms for one value. Each
  further definition doubles that.
- Nested `unevaluatedProperties` grow by a factor of 2.6 with each level.
- A pattern like `a.{255}b` takes 5 µs per byte.
- A comparison takes 20 ns with 7, and 30 µs with 1e-300.
- Only `is_valid` caches recursion, per value and reference, from the second or third pass on.

So this module counts steps of about 50 ns along the worst path through the schema, before the
schema is used. A schema whose validation does not end is rejected.
"""

from collections.abc import Callable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

from app.job_types.regex_size import regex_size
from app.job_types.schema_walker import Subschema, schema_fault, subschemas

MAX_STEPS = 25_000_000  # about a second
MAX_COST = MAX_STEPS // 100  # with more, not even a payload of a hundred values could be validated
# Chain of schemas for the same value; 500, with a payload 62 levels deep, overflowed the stack.
MAX_CHAIN_LENGTH = 64
# All patterns together; `\p{L}{1,64}` has 1,024 and takes 30 ms to compile.
MAX_PATTERN_SIZE = 4_000

_PASSES = 3  # after these, recursion is cached
_CACHED_STEPS = 2
# Comparisons for each value: nested lists can be made to collide when hashed.
_UNIQUE_ITEMS_STEPS = 60
_STEPS_PER_PATTERN_CHARACTER = 20  # for each 64 bytes of text
_UNICODE_CLASS_SIZE = 16  # compiled size, in ordinary characters
_EXACT_INTEGERS = 2**53

_MULTIPLE_OF_STEPS = 100  # a whole `multipleOf` applied to a fraction takes up to 5 µs
_NUMERIC_KEYWORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_UNEVALUATED = {"unevaluatedProperties", "unevaluatedItems"}

Pointer = str
Totals = Mapping[Pointer, int]
Edges = set[tuple[Pointer, Pointer]]


class SchemaCost:
    """The cost of one schema.

    `cost` is the number of steps for each value of a payload. `is_plain` means that the schema has
    no recursion and no alternatives, so that its first error can be found without collecting all of
    them.
    """

    def __init__(self, schema: object) -> None:
        self._subschemas = subschemas(schema)
        _check_chains(self._subschemas)
        self._order, self._back_edges = _topological_order(self._subschemas)
        used = [self._subschemas[pointer] for pointer in self._order]
        _check_patterns(used)
        self.has_unique_items = any(subschema.keywords.get("uniqueItems") is True for subschema in used)
        self.is_plain = not self._back_edges and not any(
            subschema.keywords.keys() & {"anyOf", "oneOf"} for subschema in used
        )
        self.cost = self._cost()
        if self.cost > MAX_COST:
            raise schema_fault(
                "",
                f"validation may take more than {MAX_COST} steps for each value of a payload: "
                "there are too many references, or the patterns are too large",
            )

    def max_faults(self, depth: int) -> int:
        """Upper bound of the errors of each value of a payload of this depth.

        Recursion is not cached while jsonschema-rs collects errors.
        """
        return self._run_passes(_max_errors_of, depth + 1 if self._back_edges else 1).totals[""]

    def _cost(self) -> int:
        """The cost with cached recursion: each target of recursion is evaluated once more for each
        value.
        """
        once = self._run_passes(_own_steps, 1).totals
        return self._run_passes(_own_steps, _PASSES).totals[""] + sum(
            once[target] for target in {target for _, target in self._back_edges}
        )

    def _run_passes(self, own_cost: Callable[[Subschema], int], passes: int) -> "_Pass":
        own_costs = {pointer: own_cost(self._subschemas[pointer]) for pointer in self._order}
        current = _Pass(self._back_edges, {}, {})
        for _ in range(passes if self._back_edges else 1):
            current = _Pass(self._back_edges, current.totals, current.reevaluations)
            for pointer in self._order:
                current.add(self._subschemas[pointer], own_costs[pointer])
        return current


class _Pass:
    """The cost of each subschema, where a back edge of recursion costs as much as in the previous
    pass.
    """

    def __init__(self, back_edges: Edges, totals_before: Totals, reevaluations_before: Totals) -> None:
        self._back_edges = back_edges
        self._totals_before = totals_before
        self._reevaluations_before = reevaluations_before
        self.totals: dict[Pointer, int] = {}
        self.reevaluations: dict[Pointer, int] = {}

    def add(self, subschema: Subschema, own_cost: int) -> None:
        """Adds a subschema.

        A child has one name: of the schemas for named children only the most expensive counts.
        """
        same_value = sum(self._total(subschema, pointer) for pointer in subschema.same_value)
        named_children = max(
            (sum(self._total(subschema, pointer) for pointer in group) for group in subschema.named_children.values()),
            default=0,
        )
        any_child = sum(self._total(subschema, pointer) for pointer in subschema.any_child)
        reevaluation = same_value + sum(self._reevaluation(subschema, pointer) for pointer in subschema.same_value)
        self.reevaluations[subschema.pointer] = reevaluation
        reevaluates = bool(subschema.keywords.keys() & _UNEVALUATED)
        self.totals[subschema.pointer] = (
            own_cost + same_value + named_children + any_child + (reevaluation if reevaluates else 0)
        )

    def _total(self, subschema: Subschema, pointer: Pointer) -> int:
        if (subschema.pointer, pointer) in self._back_edges:
            return self._totals_before.get(pointer, _CACHED_STEPS)
        return self.totals[pointer]

    def _reevaluation(self, subschema: Subschema, pointer: Pointer) -> int:
        """`unevaluated...` applies the schemas again to find out which members they evaluate, at
        each level below, too.
        """
        if (subschema.pointer, pointer) in self._back_edges:
            return self._reevaluations_before.get(pointer, _CACHED_STEPS)
        return self.reevaluations[pointer]


def _check_chains(schemas: Mapping[Pointer, Subschema]) -> None:
    """Rejects cyclic and long chains of schemas for the same value.

    A reference that leads back to itself without descending into the value constrains nothing and
    could recurse forever. A chain that ends must be short: the validator recurses for each link and
    each level of the value.
    """
    chain_lengths: dict[Pointer, int] = {}
    try:
        for pointer in TopologicalSorter(
            {pointer: subschema.same_value for pointer, subschema in schemas.items()}
        ).static_order():
            chain_lengths[pointer] = 1 + max((chain_lengths[inner] for inner in schemas[pointer].same_value), default=0)
    except CycleError as error:
        raise schema_fault(error.args[1][0], "cyclic reference: it leads back to itself for the same value") from None
    if max(chain_lengths.values()) > MAX_CHAIN_LENGTH:
        raise schema_fault(
            max(chain_lengths, key=chain_lengths.__getitem__),
            f"more than {MAX_CHAIN_LENGTH} schemas in a chain apply to the same value",
        )


def _topological_order(schemas: Mapping[Pointer, Subschema]) -> tuple[list[Pointer], Edges]:
    """The subschemas in use, each after the ones that it applies, and the back edges of recursion."""
    order: list[Pointer] = []
    back_edges: Edges = set()
    path: list[tuple[Pointer, Iterator[Pointer]]] = [("", schemas[""].applied_pointers())]
    visited, on_path = {""}, {""}
    while path:
        pointer, remaining = path[-1]
        inner = next(remaining, None)
        if inner is None:
            path.pop()
            on_path.remove(pointer)
            order.append(pointer)
        elif inner in on_path:
            back_edges.add((pointer, inner))
        elif inner not in visited:
            visited.add(inner)
            on_path.add(inner)
            path.append((inner, schemas[inner].applied_pointers()))
    return order, back_edges


def _check_patterns(used: list[Subschema]) -> None:
    patterns = {pattern for subschema in used for pattern in _patterns_of(subschema)}
    size = sum(regex_size(pattern) * (_UNICODE_CLASS_SIZE if r"\p" in pattern.lower() else 1) for pattern in patterns)
    if size > MAX_PATTERN_SIZE:
        raise schema_fault(
            "", f"the patterns have more than {MAX_PATTERN_SIZE} characters with their repetitions written out"
        )


def _patterns_of(subschema: Subschema) -> list[str]:
    pattern, of_names = subschema.keywords.get("pattern"), subschema.keywords.get("patternProperties")
    return [*([pattern] if isinstance(pattern, str) else []), *(of_names if isinstance(of_names, dict) else [])]


def _max_errors_of(subschema: Subschema) -> int:
    """Upper bound of the errors of a schema without its subschemas.

    Each error carries a copy of the expected value: a thousand errors of an `enum` with 2,500
    options took 400 MB.
    """
    return _check_count(subschema) + sum(
        _value_count(subschema.keywords[name]) // 4 for name in ("enum", "const", "not") if name in subschema.keywords
    )


def _value_count(value: object) -> int:
    """Counts the values in a value; a long string counts as several."""
    if isinstance(value, dict | list):
        return 1 + sum(map(_value_count, value.values() if isinstance(value, dict) else value))
    return 1 + len(value) // 64 if isinstance(value, str) else 1


def _check_count(subschema: Subschema) -> int:
    """Counts the checks that a schema makes."""
    keywords = subschema.keywords
    lists = [
        keywords.get("required"),
        *_values(keywords.get("dependentRequired")),
        *_values(keywords.get("dependencies")),
    ]
    return 1 + len(keywords) + sum(len(names) for names in lists if isinstance(names, list))


def _own_steps(subschema: Subschema) -> int:
    """Steps for the keywords of a schema itself: one each, and more for the slow ones."""
    keywords = subschema.keywords
    return (
        _check_count(subschema)
        + len(_values(keywords.get("properties")))
        + sum(_number_steps(keywords[name]) for name in _NUMERIC_KEYWORDS if name in keywords)
        + (_MULTIPLE_OF_STEPS if "multipleOf" in keywords else 0)
        + (_comparison_steps(keywords["const"]) if "const" in keywords else 0)
        + _enum_steps(keywords.get("enum"))
        + (_UNIQUE_ITEMS_STEPS if keywords.get("uniqueItems") is True else 0)
        + sum(_STEPS_PER_PATTERN_CHARACTER * regex_size(pattern) for pattern in _patterns_of(subschema))
    )


def _values(value: object) -> list[object]:
    return list(value.values()) if isinstance(value, dict) else []


def _number_steps(value: object) -> int:
    """Fractions and large numbers are compared with arbitrary precision, which takes up to 40 µs."""
    if isinstance(value, int) and abs(value) < _EXACT_INTEGERS:
        return 2
    return 40 if isinstance(value, int | float) and 1e-20 < abs(value) < 1e20 else 400


def _enum_steps(options: object) -> int:
    """Strings are looked up in a hash table; a list with any other value is searched linearly.

    That includes integers, if the payload has `7.0` or a number beyond 64 bits: 9,000 of them took
    31 s with 6,000 options.
    """
    if not isinstance(options, list):
        return 0
    is_hashed = all(option is None or isinstance(option, str | bool) for option in options)
    return 30 if is_hashed else sum(_comparison_steps(option) for option in options)


def _comparison_steps(value: object) -> int:
    if isinstance(value, dict | list):
        return 4 + sum(4 + _comparison_steps(item) for item in (value.values() if isinstance(value, dict) else value))
    return max(30, _number_steps(value)) if isinstance(value, int | float) else 1
