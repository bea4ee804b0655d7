"""A rolling upgrade, back, and a killed broker, under load (T7, B2, B4, B5): no call fails that is repeated once, and no job is lost."""

import signal
from contextlib import closing
from pathlib import Path

import pytest

from app.db.migrations import ROOT
from tests.change.releases import IS_AVAILABLE, unpack
from tests.change.rolling import Seen, roll
from tests.database import Loop, TestDatabase, create_database

COUNTS = "SELECT count(*) FROM finished_jobs WHERE state = 'completed'"
LEFT = "SELECT count(*) FROM jobs"


@pytest.fixture
def trees(tmp_path: Path) -> list[Path]:
    """The release before and this one, or this one alone; what was not tried is said at the end of the run."""
    return [unpack(tmp_path), ROOT] if IS_AVAILABLE else [ROOT]


@pytest.mark.parametrize(("how", "rounds"), [(signal.SIGTERM, 2), (signal.SIGKILL, 1)], ids=["SIGTERM", "SIGKILL"])
def test_brokers_are_replaced_one_by_one_and_no_call_fails_twice(
    postgres: str, loop: Loop, trees: list[Path], how: signal.Signals, rounds: int
) -> None:
    """Two rounds: up to this release and back, without a way down of the schema."""
    with closing(TestDatabase(create_database(postgres, loop, f"rolling_{how.name}"), loop)) as database:
        seen = roll(database.dsn, trees, rounds, how=how)
        assert seen.failed == []
        assert seen.exits == [0 if how is signal.SIGTERM else -how] * (2 * rounds)
        assert_nothing_lost(seen, database)


def assert_nothing_lost(seen: Seen, database: TestDatabase) -> None:
    assert sorted(seen.settled) == sorted(seen.enqueued)
    assert (database.value(COUNTS), database.value(LEFT)) == (len(seen.enqueued), 0)
