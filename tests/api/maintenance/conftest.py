"""Fixtures for retention: the test runs it, and no broker does at the same time."""

from collections.abc import Iterator
from typing import Any, Protocol

import pytest

from app.broker import Broker, build_broker
from app.maintenance.cleaner import Cleaner
from app.maintenance.partitions import Partitions
from tests.api.deadlines.conftest import (  # noqa: F401
    api_without_scans,
    broker_without_scans,
    database_without_scans,
    db_without_scans,
)
from tests.conftest import TEST_SETTINGS
from tests.database import Loop, TestDatabase


class RunRetention(Protocol):
    def __call__(self, **settings: Any) -> None: ...


async def _run_retention(broker_services: Broker) -> None:
    await broker_services.infra.db.open()
    try:
        await broker_services.infra.clock.refresh(broker_services.infra.db)
        await Partitions(infra=broker_services.infra, queues=broker_services.queues).run_once()
        await Cleaner(infra=broker_services.infra, dead_letters=broker_services.dead_letters).run_once()
    finally:
        await broker_services.infra.db.close()


@pytest.fixture
def run_retention(dsn: str, loop: Loop, db: TestDatabase) -> Iterator[RunRetention]:
    """Runs partitions and cleaner once, with these settings. Drops new partitions afterwards."""
    with db.leading("partitions"), db.leading("cleaner"):
        before = partitions(db)
        yield lambda **settings: loop.run(_run_retention(build_broker(TEST_SETTINGS.model_copy(update=settings), dsn)))
        for name in partitions(db) - before:
            db.execute(f"DROP TABLE {name}")


def partitions(db: TestDatabase, *, attached: bool = False) -> set[str]:
    """Returns the daily tables of finished jobs: all, or only those attached to finished_jobs."""
    rows = db.rows(
        """SELECT relname FROM pg_class LEFT JOIN pg_inherits ON inhrelid = oid WHERE relkind = 'r'
        AND relname ~ '^finished_jobs_.*[0-9]{8}$' AND (inhparent IS NOT NULL OR NOT $1)
        """,
        attached,
    )
    return {row["relname"] for row in rows}


def partition_name(db: TestDatabase, days: int, *, archive: bool = False) -> str:
    """Returns the name of the partition for the day that is `days` from now."""
    day = db.value("SELECT to_char((now() AT TIME ZONE 'UTC')::date + $1::int, 'YYYYMMDD')", days)
    return f"finished_jobs_{'archive_' if archive else ''}{day}"


def make_partition(db: TestDatabase, days: int, *, archive: bool = False) -> str:
    db.execute("SELECT create_finished_partition((now() AT TIME ZONE 'UTC')::date + $1::int, $2)", days, archive)
    return partition_name(db, days, archive=archive)


def keep_until(db: TestDatabase, job_id: str, days: int, *, archive: bool = False) -> None:
    """Sets the day on which a finished job may be deleted."""
    db.execute(
        "UPDATE finished_jobs SET keep_until = now() + make_interval(days => $2), archive = $3 WHERE id = $1",
        job_id,
        days,
        archive,
    )
