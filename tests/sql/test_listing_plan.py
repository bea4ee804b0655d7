"""A page of GET /jobs reads a page of each lane, however many jobs the lanes have."""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from asyncpg import Record

from app.db.pool import Database
from app.jobs.listing import list_jobs
from app.jobs.schemas import JobFilter, Order
from app.metrics import Metrics
from tests.conftest import TEST_SETTINGS
from tests.database import Loop, create_database
from tests.sql.test_plans import DEAD_LETTERS, FINISHED, JOBS

LIMIT = 10
LANES = [256, 257]
STATISTICS = """
INSERT INTO stat_totals (lane, scheduled, blocked, ready, running, completed, cancelled, dead)
VALUES (256, 0, 0, 10000, 0, 10000, 0, 10000);
"""
# The statistics of a lane may not be aggregated yet.
DELTAS = "INSERT INTO stat_deltas (lane, ready) SELECT 257, 1 FROM generate_series(1, 3)"


@pytest.fixture(scope="module")
def full_lanes(postgres: str, loop: Loop) -> Iterator[Database]:
    """A database with two lanes of 10,000 jobs of each kind."""
    db = Database(create_database(postgres, loop, "listing plan"), TEST_SETTINGS, Metrics())
    loop.run(db.open())
    for sql in (JOBS, FINISHED, DEAD_LETTERS, STATISTICS, DELTAS, "ANALYZE"):
        loop.run(db.rows(sql))
    yield db
    loop.run(db.close())


class RowCounter:
    """An executor that counts the rows that a query reads from each table."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.read: Counter[str] = Counter()

    async def rows(self, sql: str, *args: object) -> list[Record]:
        plan = await self._db.value(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", *args)
        self._count(json.loads(plan)[0]["Plan"])
        return []

    def _count(self, node: dict[str, Any]) -> None:
        if table := node.get("Relation Name"):
            rows = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
            self.read[table] += round(node["Actual Loops"] * rows)
        for child in node.get("Plans", ()):
            self._count(child)


def test_page_reads_one_page_of_each_table_and_lane(full_lanes: Database, loop: Loop) -> None:
    counter: Any = RowCounter(full_lanes)
    page: dict[str, Any] = {"after": None, "order": Order.DESC, "limit": LIMIT, "max_bytes": 2**20, "payload": True}
    loop.run(list_jobs(counter, LANES, JobFilter(), retention_now=datetime.now(UTC), **page))
    read = counter.read
    assert read.pop("stat_totals") == 1
    assert read.pop("stat_deltas") == 3
    assert {table: rows <= len(LANES) * LIMIT for table, rows in read.items()} == {
        "jobs": True,
        "finished_jobs_default": True,
        "dead_letters": True,
    }, read
