"""Jobs that ask for a unique key."""

from typing import Any

from tests.api import Json
from tests.database import TestDatabase


def has(key: str = "k", **fields: Any) -> Json:
    """The fields of a job that asks for the key; `for_seconds` and `on_duplicate` go with the key, all others with the job."""
    unique = {"key": key} | {name: fields.pop(name) for name in ("for_seconds", "on_duplicate") if name in fields}
    return {"unique": unique, **fields}


def window_over(db: TestDatabase) -> None:
    """As if the time for which keys were asked had passed."""
    db.execute("UPDATE keys SET expires_at = now() - interval '1 second' WHERE answer = 'window'")


def count_jobs(db: TestDatabase) -> int:
    """In every state."""
    return int(
        db.value(
            "SELECT (SELECT count(*) FROM jobs) + (SELECT count(*) FROM finished_jobs) + (SELECT count(*) FROM dead_letters)"
        )
    )
