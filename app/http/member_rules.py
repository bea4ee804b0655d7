"""Rules across the members of an object, such as "exactly one of these two members is present".

A request model lists its rules in `rules`. The rules are checked in two places:

- `body_errors` checks a body that has other errors, so that one response lists all errors.
- `rule_faults`, which the service calls, checks a body without other errors.

A member with an invalid value counts as present.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec import UNSET, Struct

from app.errors import Fault

ValueOf = Callable[[str], Any]  # returns the value of a member, or UNSET


class MemberRule(ABC):
    """A rule about more than one member of an object."""

    @property
    def json_schema(self) -> dict[str, Any]:
        """Returns the rule as keywords of JSON Schema, for the OpenAPI document. The result is
        empty if JSON Schema cannot express the rule."""
        return {}

    @abstractmethod
    def faults(self, value_of: ValueOf, pointer: str) -> Iterator[Fault]:
        """Yields a fault for each violation of the rule. `pointer` is the JSON pointer to the
        object."""


def rule_faults(model: Struct, pointer: str = "") -> list[Fault]:
    """Checks a decoded object against the rules of its model, and returns the faults."""
    rules: Sequence[MemberRule] = type(model).rules  # type: ignore[attr-defined]
    return [fault for rule in rules for fault in rule.faults(partial(getattr, model), pointer)]


def member_of(value: Any, name: str) -> Any:
    """Returns the member `name` of a decoded value. Returns UNSET if the value has no such member.

    The value may be a model or a dict. In an invalid body it may also be something else, such as a
    number.
    """
    return value.get(name, UNSET) if isinstance(value, dict) else getattr(value, name, UNSET)


@dataclass(frozen=True)
class NotBoth(MemberRule):
    """At most one of the two members may be present."""

    first: str
    second: str

    @property
    def json_schema(self) -> dict[str, Any]:
        """Does not use oneOf, because client generators turn that into a union."""
        return {"not": {"required": [self.first, self.second]}}

    def faults(self, value_of: ValueOf, pointer: str) -> Iterator[Fault]:
        if value_of(self.first) is not UNSET and value_of(self.second) is not UNSET:
            detail = f"send either {self.first} or {self.second}, not both"
            yield Fault(f"{pointer}/{self.second}", "invalid", detail)


@dataclass(frozen=True)
class ExactlyOne(MemberRule):
    """Exactly one of the two members must be present."""

    first: str
    second: str

    @property
    def json_schema(self) -> dict[str, Any]:
        first, second = {"required": [self.first]}, {"required": [self.second]}
        return {"if": first, "then": {"not": second}, "else": second}

    def faults(self, value_of: ValueOf, pointer: str) -> Iterator[Fault]:
        yield from NotBoth(self.first, self.second).faults(value_of, pointer)
        if value_of(self.first) is UNSET and value_of(self.second) is UNSET:
            yield Fault(f"{pointer}/{self.first}", "missing", f"send either {self.first} or {self.second}")


@dataclass(frozen=True)
class Requires(MemberRule):
    """`member` may be present only if `other` is present."""

    member: str
    other: str

    @property
    def json_schema(self) -> dict[str, Any]:
        return {"dependentRequired": {self.member: [self.other]}}

    def faults(self, value_of: ValueOf, pointer: str) -> Iterator[Fault]:
        if value_of(self.member) is not UNSET and value_of(self.other) is UNSET:
            yield Fault(f"{pointer}/{self.member}", "invalid", f"{self.member} requires {self.other}")


@dataclass(frozen=True)
class RequiredForValue(MemberRule):
    """Some values of `member` require another member. `required` maps each of these values to the
    name of the other member."""

    member: str
    required: Mapping[str, str]

    @property
    def json_schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {}
        for value, other in reversed([*self.required.items()]):
            condition = {"properties": {self.member: {"const": value}}}
            schema = {"if": condition, "then": {"required": [other]}, **({"else": schema} if schema else {})}
        return schema

    def faults(self, value_of: ValueOf, pointer: str) -> Iterator[Fault]:
        value = value_of(self.member)
        other = self.required.get(value) if isinstance(value, str) else None
        if other is not None and value_of(other) is UNSET:
            yield Fault(f"{pointer}/{other}", "missing", f"{self.member} {value!s} requires {other}")
