"""Reference counts for statistics, and control of their aggregation."""

from collections.abc import Callable, Iterator

import pytest

from app.broker import Broker
from tests.database import Loop, TestDatabase

CountJobs = Callable[[str], dict[str, int]]
Aggregate = Callable[[], None]


@pytest.fixture
def aggregate(broker_services: Broker, loop: Loop, db: TestDatabase) -> Iterator[Aggregate]:
    """Aggregates the deltas now. No broker aggregates them while the test runs."""
    with db.leading("statistics"):
        yield lambda: loop.run(broker_services.stats.aggregate())


@pytest.fixture
def count_jobs(db: TestDatabase) -> CountJobs:
    """Counts the rows of a queue by state, without zeros."""

    def count(queue: str) -> dict[str, int]:
        rows = db.rows(
            """
            SELECT state, count(*) AS jobs
            FROM (
                SELECT lane, state FROM jobs
                UNION ALL SELECT lane, state FROM finished_jobs
                UNION ALL SELECT lane, 'dead' FROM dead_letters
            ) AS everywhere
            JOIN queues ON lane / 256 = queues.id
            WHERE queues.name = $1
            GROUP BY state
            """,
            queue,
        )
        return {row["state"]: row["jobs"] for row in rows}

    return count
