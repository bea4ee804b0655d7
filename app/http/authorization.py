"""Who calls, and what that reaches: scopes, each limited to queue patterns (`work:email.*`). Knows no HTTP."""

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from app.errors import Forbidden, Unauthenticated


class Scope(StrEnum):
    ENQUEUE = "enqueue"
    WORK = "work"
    READ = "read"
    MANAGE = "manage"


ADMIN = "admin"  # in a request for a key: all four scopes
# No queue is named `.` or `..`.
SCOPE_PATTERN = r"^(enqueue|work|read|manage|admin)(:(\.{0,2}[A-Za-z0-9_:*-]|\.{3})[A-Za-z0-9._:*-]{0,119})?$"
SCOPE_RULE = "enqueue, work, read, manage or admin, alone or with a pattern of queue names such as work:email.*"


class Grant(NamedTuple):
    """One scope, for the queues that match. In a pattern `*` stands for anything; without one it is every queue."""

    scope: Scope
    pattern: str

    @classmethod
    def parse(cls, text: str) -> "Grant":
        scope, _, pattern = text.partition(":")
        return cls(Scope(scope), pattern or "*")


def expanded(text: str) -> list[str]:
    """The scopes that one text of a request stands for: `admin:email.*` is all four scopes, for these queues."""
    name, colon, pattern = text.partition(":")
    return [f"{scope}{colon}{pattern}" for scope in Scope] if name == ADMIN else [text]


def is_admin(scopes: Iterable[str]) -> bool:
    """Whether a key with these scopes manages every queue, and may therefore make other keys."""
    return Grant(Scope.MANAGE, "*") in [Grant.parse(scope) for text in scopes for scope in expanded(text)]


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Access:
    """What one request reaches: the queues for which its caller has the scope that the route asks for."""

    caller: str
    patterns: frozenset[str]
    max_leases: int | None = None
    ended: Callable[[], bool] = field(default=_never, repr=False, compare=False)

    def check_not_revoked(self) -> None:
        """For who has waited: the key may have been revoked, or have expired, meanwhile."""
        if self.ended():
            raise Unauthenticated("the key has ended while the call waited")

    @property
    def everything(self) -> bool:
        return "*" in self.patterns

    def allows(self, queue: str) -> bool:
        return self.everything or any(
            _regex(pattern).fullmatch(queue) for pattern in self.patterns
        )  # `_regex` remembers

    def check(self, queue: str, pointer: str) -> None:
        if not self.allows(queue):
            raise Forbidden.at(pointer, f"this key does not reach the queue {queue}")

    @property
    def regex(self) -> str | None:
        """For SQL: a name that matches is reached. None: every name is."""
        return (
            None
            if self.everything
            else "|".join(f"^{_escaped(pattern).replace('*', '.*')}$" for pattern in sorted(self.patterns))
        )


def _escaped(pattern: str) -> str:
    """Of the characters in patterns only the dot and the star mean something to regular expressions, here and in Postgres."""
    return pattern.replace(".", r"\.")


@lru_cache(maxsize=10_000)
def _regex(pattern: str) -> "re.Pattern[str]":
    """Each star but the last takes as little as it can and stays with that. With `.*` for each, `*a*a*a*a*a*a*b` took 7 s to find that it
    does not match sixty times `a`."""
    before, star, after = _escaped(pattern).rpartition("*")
    first, *others = before.split("*")
    return re.compile("".join([first, *(f"(?>.*?{part})" for part in others), ".*" if star else "", after]))


@dataclass(frozen=True, slots=True)
class Caller:
    """The holder of a key. Keys with the same name are one caller: a new key takes over from an old one."""

    name: str
    grants: frozenset[Grant]
    max_leases: int | None = None
    ended: Callable[[], bool] = field(default=_never, repr=False, compare=False)
    _reached: dict[frozenset[Scope], Access | None] = field(default_factory=dict, repr=False, compare=False)

    def access(self, scopes: frozenset[Scope]) -> Access | None:
        """With any of these scopes; None if the caller has none of them."""
        if scopes not in self._reached:
            self._reached[scopes] = self._access(scopes)
        return self._reached[scopes]

    def _access(self, scopes: Collection[Scope]) -> Access | None:
        patterns = frozenset(grant.pattern for grant in self.grants if grant.scope in scopes)
        return Access(self.name, patterns, self.max_leases, self.ended) if patterns else None


def caller_with(
    name: str, scopes: Iterable[str], max_leases: int | None = None, ended: Callable[[], bool] = _never
) -> Caller:
    return Caller(name, frozenset(map(Grant.parse, scopes)), max_leases, ended)


ANONYMOUS = caller_with("", Scope)  # where no keys have been made
FULL_ACCESS = Access("", frozenset("*"))  # for what the broker does itself
