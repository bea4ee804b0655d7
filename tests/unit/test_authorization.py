"""Queue patterns of scopes: `*` matches anything, any other character itself; in Postgres as in
Python."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.http.authorization import ANONYMOUS, Access, Grant, KeyScope, make_caller
from tests.database import TestDatabase

# A broker of other tests runs in this process and uses `random` too; hypothesis would blame these
# tests.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)

# Few letters, so that many names match, and the characters of names that are special in regexes.
names = st.text("ab.:-_", min_size=1, max_size=12)
patterns = st.text("ab.:-_*", min_size=1, max_size=12)


def access_to(*patterns: str) -> Access:
    return Access("caller", frozenset(patterns))


@given(patterns, names)
def test_star_in_a_scope_pattern_matches_any_text_and_other_characters_themselves(pattern: str, name: str) -> None:
    """fnmatch has other wildcards too, but a pattern may not contain them."""
    assert access_to(pattern).allows(name) == fnmatchcase(name, pattern)


@given(names, names)
def test_pattern_without_star_matches_one_name(pattern: str, name: str) -> None:
    assert access_to(pattern).allows(name) == (pattern == name)


@given(patterns, patterns, names)
def test_scope_with_several_patterns_allows_what_any_of_them_matches(first: str, second: str, name: str) -> None:
    assert access_to(first, second).allows(name) == (access_to(first).allows(name) or access_to(second).allows(name))


def test_dot_in_a_scope_pattern_matches_only_a_dot() -> None:
    assert access_to("email.*").allows("email.send")
    assert not access_to("email.*").allows("email-send")
    assert not access_to("email.*").allows("email")


@pytest.mark.parametrize("name", ["mail\n", "\nmail", "mail\nother"])
def test_line_break_matches_no_scope_pattern(name: str) -> None:
    assert not access_to("mail", "mail*").allows(name)


def test_pattern_with_many_stars_needs_no_backtracking() -> None:
    """The assertion is that this test ends: with backtracking it would practically never end."""
    assert not access_to("*a" * 59 + "*b").allows("a" * 120)
    assert access_to("*a" * 59 + "*b").allows("a" * 119 + "b")


@settings(max_examples=50, deadline=None)
@given(pattern=patterns, second=patterns, queue_names=st.lists(names, min_size=1, max_size=20, unique=True))
def test_postgres_regex_matches_the_same_names(
    database: TestDatabase, pattern: str, second: str, queue_names: list[str]
) -> None:
    access = access_to(pattern, second)
    sql = "SELECT array_agg(name) FROM unnest($1::text[]) AS name WHERE $2::text IS NULL OR name ~ $2"
    assert set(database.value(sql, queue_names, access.sql_regex) or []) == {
        name for name in queue_names if access.allows(name)
    }


def test_pattern_with_many_stars_needs_no_backtracking_in_postgres(database: TestDatabase) -> None:
    assert database.value("SELECT $1 ~ $2", "a" * 120, access_to("*a" * 59 + "*b").sql_regex) is False


@given(st.sampled_from(KeyScope), patterns)
def test_scope_is_parsed_into_scope_and_pattern(scope: KeyScope, pattern: str) -> None:
    assert Grant.parse(f"{scope}:{pattern}") == Grant(scope, pattern)
    assert Grant.parse(scope) == Grant(scope, "*")


def test_access_of_a_scope_covers_only_the_queues_of_that_scope() -> None:
    caller = make_caller("caller", ["work:mail", "read:*.eu", "read:reports"])
    work, read = caller.access_for(frozenset({KeyScope.WORK})), caller.access_for(frozenset({KeyScope.READ}))
    assert work is not None
    assert read is not None
    assert [work.allows(name) for name in ("mail", "reports", "a.eu")] == [True, False, False]
    assert [read.allows(name) for name in ("mail", "reports", "a.eu")] == [False, True, True]
    assert caller.access_for(frozenset({KeyScope.MANAGE})) is None


def test_either_of_two_named_scopes_is_sufficient() -> None:
    caller = make_caller("caller", ["enqueue:mail", "manage:reports"])
    either = caller.access_for(frozenset({KeyScope.ENQUEUE, KeyScope.MANAGE}))
    assert either is not None
    assert [either.allows(name) for name in ("mail", "reports", "other")] == [True, True, False]


def test_only_a_single_star_means_all_queues() -> None:
    assert [access_to(pattern).all_queues for pattern in ("*", "**", "a*")] == [True, False, False]
    assert all(ANONYMOUS.access_for(frozenset({scope})) == Access("", frozenset("*")) for scope in KeyScope)


def test_patterns_become_one_postgres_regex() -> None:
    assert access_to("a.b*", "c").sql_regex == r"^a\.b.*$|^c$"
    assert access_to("*", "c").sql_regex is None
