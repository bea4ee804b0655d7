"""What a scope reaches: `*` stands for anything, everything else for itself; in Postgres as in Python."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.http.authorization import ANONYMOUS, Access, Grant, Scope, caller_with
from tests.database import TestDatabase

# The broker of other tests lives in this process and rolls dice too: hypothesis takes that for ours.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)

# Few letters, so that much matches; and the characters of names that mean something elsewhere.
names = st.text("ab.:-_", min_size=1, max_size=12)
patterns = st.text("ab.:-_*", min_size=1, max_size=12)


def reaching(*patterns: str) -> Access:
    return Access("somebody", frozenset(patterns))


@given(patterns, names)
def test_a_star_stands_for_anything_and_the_rest_for_itself(pattern: str, name: str) -> None:
    """fnmatch has other wildcards too, none of which a pattern may hold."""
    assert reaching(pattern).allows(name) == fnmatchcase(name, pattern)


@given(names, names)
def test_a_pattern_without_a_star_is_one_name(pattern: str, name: str) -> None:
    assert reaching(pattern).allows(name) == (pattern == name)


@given(patterns, patterns, names)
def test_one_pattern_that_matches_is_enough(one: str, other: str, name: str) -> None:
    assert reaching(one, other).allows(name) == (reaching(one).allows(name) or reaching(other).allows(name))


def test_a_dot_is_a_dot() -> None:
    assert reaching("email.*").allows("email.send")
    assert not reaching("email.*").allows("email-send")
    assert not reaching("email.*").allows("email")


@pytest.mark.parametrize("name", ["mail\n", "\nmail", "mail\nother"])
def test_a_line_break_is_not_overlooked(name: str) -> None:
    assert not reaching("mail", "mail*").allows(name)


def test_many_stars_are_decided_at_once() -> None:
    """That this test ends is the assertion: tried every way, it would take longer than there is."""
    assert not reaching("*a" * 59 + "*b").allows("a" * 120)
    assert reaching("*a" * 59 + "*b").allows("a" * 119 + "b")


@settings(max_examples=50, deadline=None)
@given(pattern=patterns, other=patterns, named=st.lists(names, min_size=1, max_size=20, unique=True))
def test_postgres_is_told_the_same(database: TestDatabase, pattern: str, other: str, named: list[str]) -> None:
    access = reaching(pattern, other)
    sql = "SELECT array_agg(name) FROM unnest($1::text[]) AS name WHERE $2::text IS NULL OR name ~ $2"
    assert set(database.value(sql, named, access.regex) or []) == {name for name in named if access.allows(name)}


def test_many_stars_are_decided_at_once_in_postgres_too(database: TestDatabase) -> None:
    assert database.value("SELECT $1 ~ $2", "a" * 120, reaching("*a" * 59 + "*b").regex) is False


@given(st.sampled_from(Scope), patterns)
def test_a_scope_is_read_as_it_is_written(scope: Scope, pattern: str) -> None:
    assert Grant.parse(f"{scope}:{pattern}") == Grant(scope, pattern)
    assert Grant.parse(scope) == Grant(scope, "*")


def test_a_caller_reaches_with_a_scope_what_that_scope_was_given_for() -> None:
    caller = caller_with("somebody", ["work:mail", "read:*.eu", "read:reports"])
    work, read = caller.access(frozenset({Scope.WORK})), caller.access(frozenset({Scope.READ}))
    assert work is not None
    assert read is not None
    assert [work.allows(name) for name in ("mail", "reports", "a.eu")] == [True, False, False]
    assert [read.allows(name) for name in ("mail", "reports", "a.eu")] == [False, True, True]
    assert caller.access(frozenset({Scope.MANAGE})) is None


def test_either_scope_will_do_where_two_are_named() -> None:
    caller = caller_with("somebody", ["enqueue:mail", "manage:reports"])
    either = caller.access(frozenset({Scope.ENQUEUE, Scope.MANAGE}))
    assert either is not None
    assert [either.allows(name) for name in ("mail", "reports", "other")] == [True, True, False]


def test_only_a_lone_star_is_everything() -> None:
    assert [reaching(pattern).everything for pattern in ("*", "**", "a*")] == [True, False, False]
    assert all(ANONYMOUS.access(frozenset({scope})) == Access("", frozenset("*")) for scope in Scope)


def test_what_is_reached_is_told_to_postgres_as_one_expression() -> None:
    assert reaching("a.b*", "c").regex == r"^a\.b.*$|^c$"
    assert reaching("*", "c").regex is None
