"""Helpers for jobs with unique keys."""

from typing import Any

from tests.api_client import Json
from tests.database import TestDatabase


def with_key(key: str = "k", **fields: Any) -> Json:
    """Fields of a job with the unique key. `for_seconds` and `on_duplicate` belong to the key."""
    unique = {"key": key} | {name: fields.pop(name) for name in ("for_seconds", "on_duplicate") if name in fields}
    return {"unique": unique, **fields}


def end_windows(db: TestDatabase) -> None:
    """Lets the windows of all unique keys end."""
    db.execute("UPDATE deduplication_keys SET expires_at = now() - interval '1 second' WHERE response = 'window'")


def count_jobs(db: TestDatabase) -> int:
    """Counts the jobs in all states."""
    query = (
        "SELECT (SELECT count(*) FROM jobs) + (SELECT count(*) FROM finished_jobs)"
        " + (SELECT count(*) FROM dead_letters)"
    )
    return int(db.value(query))
