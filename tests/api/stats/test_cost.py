"""The cost of statistics does not grow with the backlog."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.stats.store import SQL
from tests.api.stats.conftest import Aggregate
from tests.api_client import Api
from tests.database import TestDatabase


def buffers(db: TestDatabase, statement: str, *args: object) -> int:
    """The number of pages that the statement read."""
    plan: list[dict[str, Any]] = json.loads(db.value(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", *args))
    return int(plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"])


def cost(db: TestDatabase, lanes: list[int]) -> dict[str, int]:
    now = datetime.now(UTC)
    since_1, since_5, since_60 = (now - timedelta(minutes=minutes) for minutes in (1, 5, 60))
    rates = SQL.rates(lanes=lanes, since_1=since_1, since_5=since_5, since_60=since_60)
    return {
        "counts": buffers(db, *SQL.counts(lanes=lanes)),
        "oldest_ready": buffers(db, *SQL.oldest_ready(lanes=lanes)),
        "rates": buffers(db, *rates),
        "times": buffers(db, *SQL.durations(lanes=lanes, since=since_60)),
        "workers_seen": buffers(db, *SQL.workers_seen(since=since_60)),
    }


@pytest.mark.slow
def test_statistics_of_20000_jobs_read_about_as_many_pages_as_of_100(
    api: Api, db: TestDatabase, aggregate: Aggregate
) -> None:
    db.execute("VACUUM jobs, stat_deltas, stat_totals, stat_rates, stat_durations, workers")
    api.batch(*[{"priority": n % 3} for n in range(100)])
    lanes = [db.value("SELECT id * 256 FROM queues WHERE name = $1", api.queue)]
    aggregate()
    cost_of_100 = cost(db, lanes)
    for _ in range(20):
        api.batch(*[{"priority": n % 3} for n in range(1000)])
        aggregate()
    assert api.counts() == {"ready": 20_100}
    cost_of_20000 = cost(db, lanes)
    assert {name: pages for name, pages in cost_of_20000.items() if pages > 2 * cost_of_100[name] + 20} == {}
