"""What statistics are compared with, and when they are folded."""

from collections.abc import Callable, Iterator

import pytest

from app.broker import Broker
from tests.database import Loop, TestDatabase

Counted = Callable[[str], dict[str, int]]
Fold = Callable[[], None]


@pytest.fixture
def fold(broker_services: Broker, loop: Loop, db: TestDatabase) -> Iterator[Fold]:
    """Folds now; and nobody else does while the test runs."""
    with db.led_here("fold"):
        yield lambda: loop.run(broker_services.stats.aggregate())


@pytest.fixture
def counted(db: TestDatabase) -> Counted:
    """The jobs of a queue by state, without the zeros, counted one by one."""

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
