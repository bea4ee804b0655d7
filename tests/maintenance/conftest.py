"""Retention, run now and by this test alone."""

from collections.abc import Iterator
from typing import Any, Protocol

import pytest

from app.broker import Broker, build_broker
from app.maintenance.chores import Cleaner, Partitions
from tests.conftest import QUICK
from tests.database import Loop, TestDatabase
from tests.deadlines.conftest import drowsy, drowsy_broker, drowsy_database, drowsy_db  # noqa: F401


class Retain(Protocol):
    def __call__(self, **settings: Any) -> None: ...


async def _run_once(broker_services: Broker) -> None:
    await broker_services.infra.db.open()
    try:
        await broker_services.infra.clock.refresh(broker_services.infra.db)
        await Partitions(broker_services.infra, broker_services.queues).run_once()
        await Cleaner(broker_services.infra, broker_services.dead_letters).run_once()
    finally:
        await broker_services.infra.db.close()


@pytest.fixture
def retain(dsn: str, loop: Loop, db: TestDatabase) -> Iterator[Retain]:
    """What the chore does once, with these settings. What it has made is gone afterwards."""
    with db.led_here("retention"):
        before = partitions(db)
        yield lambda **settings: loop.run(_run_once(build_broker(QUICK.model_copy(update=settings), dsn)))
        for name in partitions(db) - before:
            db.execute(f"DROP TABLE {name}")


def partitions(db: TestDatabase, *, attached: bool = False) -> set[str]:
    """Tables of finished jobs by day: all that exist, or only those that belong to finished_jobs."""
    rows = db.rows(
        """
        SELECT relname
        FROM pg_class
        LEFT JOIN pg_inherits ON inhrelid = oid
        WHERE relkind = 'r' AND relname ~ '^finished_jobs_.*[0-9]{8}$' AND (inhparent IS NOT NULL OR NOT $1)
        """,
        attached,
    )
    return {row["relname"] for row in rows}


def day_of(db: TestDatabase, days: int, *, archive: bool = False) -> str:
    """The name of the partition for so many days from now."""
    day = db.value("SELECT to_char((now() AT TIME ZONE 'UTC')::date + $1::int, 'YYYYMMDD')", days)
    return f"finished_jobs_{'archive_' if archive else ''}{day}"


def make_partition(db: TestDatabase, days: int, *, archive: bool = False) -> str:
    db.execute("SELECT make_finished_partition((now() AT TIME ZONE 'UTC')::date + $1::int, $2)", days, archive)
    return day_of(db, days, archive=archive)


def keep_until(db: TestDatabase, job_id: str, days: int, *, archive: bool = False) -> None:
    """As if a finished job might go on that day."""
    db.execute(
        "UPDATE finished_jobs SET keep_until = now() + make_interval(days => $2), archive = $3 WHERE id = $1",
        job_id,
        days,
        archive,
    )
