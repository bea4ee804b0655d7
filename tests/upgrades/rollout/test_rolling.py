"""A rolling upgrade, a rolling downgrade and killed brokers, under load.

No call fails after one retry, and no job is lost. Faults: docs/reliability/faults.md#b2, #b4,
#b5."""

import signal
from contextlib import closing
from pathlib import Path

import pytest

from app.db.migrations import ROOT
from tests.database import Loop, TestDatabase, create_database
from tests.upgrades.rollout.releases import IS_AVAILABLE, unpack
from tests.upgrades.rollout.rolling import Results, roll

COMPLETED = "SELECT count(*) FROM finished_jobs WHERE state = 'completed'"
LEFT = "SELECT count(*) FROM jobs"


@pytest.fixture
def trees(tmp_path: Path) -> list[Path]:
    """The previous release and this one, or this one alone if the previous one is not available."""
    return [unpack(tmp_path), ROOT] if IS_AVAILABLE else [ROOT]


@pytest.mark.parametrize(("number", "rounds"), [(signal.SIGTERM, 2), (signal.SIGKILL, 1)], ids=["SIGTERM", "SIGKILL"])
def test_rolling_restart_fails_no_call_twice_and_loses_no_job(
    postgres: str, loop: Loop, trees: list[Path], number: signal.Signals, rounds: int
) -> None:
    """Two rounds: upgrade to this release and downgrade again, without a downgrade of the
    schema."""
    with closing(TestDatabase(create_database(postgres, loop, f"rolling_{number.name}"), loop)) as database:
        results = roll(database.dsn, trees, rounds, number=number)
        assert results.failed == []
        assert results.exits == [0 if number is signal.SIGTERM else -number] * (2 * rounds)
        assert_nothing_lost(results, database)


def assert_nothing_lost(results: Results, database: TestDatabase) -> None:
    assert sorted(results.settled) == sorted(results.enqueued)
    assert (database.value(COMPLETED), database.value(LEFT)) == (len(results.enqueued), 0)
