"""Which settings of a Postgres lose acknowledged jobs, and which only deserve a word."""

import pytest

from app.db import session_settings
from app.db.durability import Facts, durability_failures, durability_warnings
from tests.readme.test_readme import code

GOOD: Facts = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "standby_names": "",
    "standbys": 0,
    "data_checksums": "on",
    "brokers": 3,
    "connection_limit": 97,
}


def test_the_defaults_of_postgres_lose_nothing() -> None:
    assert (list(durability_failures(GOOD)), list(durability_warnings(GOOD, 12))) == ([], [])


@pytest.mark.parametrize(
    ("change", "begins"),
    [
        ({"fsync": "off"}, "fsync is off"),
        ({"full_page_writes": "off"}, "full_page_writes is off"),
        ({"synchronous_commit": "off"}, "synchronous_commit is off"),
        ({"synchronous_commit": "local", "standby_names": "b"}, "synchronous_commit is local"),
    ],
)
def test_what_loses_jobs_is_named(change: Facts, begins: str) -> None:
    (found,) = durability_failures({**GOOD, **change})
    assert found.startswith(begins)


@pytest.mark.parametrize("level", ["on", "local", "remote_write", "remote_apply"])
def test_without_a_standby_any_other_level_is_the_same(level: str) -> None:
    assert list(durability_failures({**GOOD, "synchronous_commit": level})) == []


@pytest.mark.parametrize(
    ("change", "begins"),
    [
        ({"data_checksums": "off"}, "data_checksums is off"),
        ({"standby_names": "b"}, "no synchronous standby is connected"),
        ({"brokers": 9}, "9 broker processes may open 12 connections each, the server accepts 97"),
    ],
)
def test_what_deserves_a_word_is_named(change: Facts, begins: str) -> None:
    (found,) = durability_warnings({**GOOD, **change}, 12)
    assert found.startswith(begins)


def test_standbys_that_we_may_not_see_are_not_missed() -> None:
    assert list(durability_warnings({**GOOD, "standby_names": "b", "standbys": None}, 12)) == []


def test_a_session_that_lacks_a_setting_is_told_which() -> None:
    has = list(session_settings.NEEDED.values())
    assert list(session_settings.missing_settings(has)) == []
    (told,) = session_settings.missing_settings(["on", *has[1:]])
    assert told.endswith("should be set to: enable_seqscan=off")


def test_the_readme_gives_the_role_what_a_pooler_keeps_us_from_sending() -> None:
    (told,) = code("Your own Postgres", "sql")
    assert told.strip().splitlines() == [
        f"ALTER ROLE longshore IN DATABASE longshore SET {name} = '{value}';"
        for name, value in session_settings.NEEDED.items()
    ]
