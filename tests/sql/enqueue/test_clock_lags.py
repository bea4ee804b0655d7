"""The time by which the enqueue function decides whether keys and finished parents are old."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

from tests.database import TestDatabase
from tests.table import table

NOW = datetime(2030, 1, 1, tzinfo=UTC)
DAY = 86400


@table(
    ("rows", "lag"),
    [
        ([], 0),
        ([("retention", 600, -60, DAY)], 600),
        ([("retention", 600, -60, DAY), ("retention", 7200, -60, DAY)], 7200),
        ([("unique_windows", 600, -60, DAY)], 0),
        ([("retention", 600, 1, DAY)], 0),  # the clock has jumped back
        ([("retention", 600, -DAY - 60, 0)], 0),  # a day has passed
        ([("retention", 600, -60, DAY), ("retention", 7200, 1, DAY)], 600),
    ],
)
def test_time_lags_by_the_largest_stored_lag_that_applies(
    db: TestDatabase, rows: list[tuple[str, int, int, int]], lag: int
) -> None:
    db.execute("DELETE FROM clock_lags")
    for clock, seconds, starts, ends in rows:
        instants = [NOW + timedelta(seconds=offset) for offset in (starts, ends)]
        db.execute("INSERT INTO clock_lags VALUES ($1, $2, $3, $4, $5)", clock, uuid4(), float(seconds), *instants)
    assert db.value("SELECT longshore_lagging_time('retention', $1)", NOW) == NOW - timedelta(seconds=lag)
    db.execute("DELETE FROM clock_lags")
