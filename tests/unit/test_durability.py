"""Postgres settings that can lose acknowledged jobs (failures), and settings that deserve a
warning."""

import re

from app.db import session_settings
from app.db.durability import ServerRow, durability_failures, durability_warnings
from app.db.migrations import ROOT
from tests.table import table

GOOD: ServerRow = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "standby_names": "",
    "standbys": 0,
    "data_checksums": "on",
    "brokers": 3,
    "connection_limit": 97,
}


def test_postgres_defaults_are_durable() -> None:
    assert (list(durability_failures(GOOD)), list(durability_warnings(GOOD, 12))) == ([], [])


@table(
    ("change", "prefix"),
    [
        ({"fsync": "off"}, "fsync is off"),
        ({"full_page_writes": "off"}, "full_page_writes is off"),
        ({"synchronous_commit": "off"}, "synchronous_commit is off"),
        ({"synchronous_commit": "local", "standby_names": "b"}, "synchronous_commit is local"),
    ],
)
def test_setting_that_can_lose_jobs_is_a_failure(change: ServerRow, prefix: str) -> None:
    (text,) = durability_failures({**GOOD, **change})
    assert text.startswith(prefix)


@table("level", ["on", "local", "remote_write", "remote_apply"])
def test_without_standby_every_other_synchronous_commit_level_is_durable(level: str) -> None:
    assert list(durability_failures({**GOOD, "synchronous_commit": level})) == []


@table(
    ("change", "prefix"),
    [
        ({"data_checksums": "off"}, "data_checksums is off"),
        ({"standby_names": "b"}, "no synchronous standby is connected"),
        ({"brokers": 9}, "9 broker processes may open 12 connections each, the server accepts 97"),
    ],
)
def test_risky_setting_is_a_warning(change: ServerRow, prefix: str) -> None:
    (text,) = durability_warnings({**GOOD, **change}, 12)
    assert text.startswith(prefix)


def test_invisible_standbys_cause_no_warning() -> None:
    assert list(durability_warnings({**GOOD, "standby_names": "b", "standbys": None}, 12)) == []


def test_missing_session_setting_is_named() -> None:
    values = list(session_settings.NEEDED.values())
    assert list(session_settings.missing_settings(values)) == []
    (text,) = session_settings.missing_settings(["on", *values[1:]])
    assert text.endswith("set them with ALTER ROLE: enable_seqscan=off")


def test_documented_role_settings_equal_the_session_settings() -> None:
    """A connection pooler does not pass the session settings on, so the role must have them."""
    page = (ROOT / "docs" / "operations" / "postgres.md").read_text()
    blocks = re.findall(r"^```sql\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (block,) = [block for block in blocks if "ALTER ROLE longshore IN DATABASE" in block]
    assert block.strip().splitlines() == [
        f"ALTER ROLE longshore IN DATABASE longshore SET {name} = '{value}';"
        for name, value in session_settings.NEEDED.items()
    ]
