"""The policy benchmark in a tiny size: it runs, and its counts match the known values."""

import pytest

from bench.meter import Tally
from bench.policies import ENQUEUE_CASES, HEAD, POLICIES, Row, measure
from bench.scene import Size
from tests.database import Loop, create_database

TINY = Size(singles=3, batches=2, warm_up=0, busy=20, running=5)
Rows = dict[tuple[str, int], Row]


@pytest.fixture(scope="module")
def rows(postgres: str, loop: Loop) -> Rows:
    dsn = create_database(postgres, loop, "bench_policies")
    return {(row.name, row.n): row for row in loop.run(measure(dsn, TINY))}


def min_round_trips(calls: Tally) -> int:
    """Returns the minimum, because a call that finds stale configuration reloads it with a query
    more."""
    return min(call.round_trips for call in calls)


def test_every_policy_has_rows_for_calls_with_one_job_and_with_many(rows: Rows) -> None:
    names = [f"claim: {policy.name}" for policy in POLICIES] + [f"enqueue: {case.name}" for case in ENQUEUE_CASES]
    assert list(rows) == [(name, n) for name in names for n in (1, 100)]
    assert {row.to_markdown().count("|") for row in rows.values()} == {
        line.count("|") for line in HEAD.strip().splitlines()
    }


@pytest.mark.parametrize("n", [1, 100])
@pytest.mark.parametrize("verb", ["claim", "enqueue"])
def test_queue_without_policies_needs_one_statement(rows: Rows, verb: str, n: int) -> None:
    row = rows[f"{verb}: none", n]
    assert (min_round_trips(row.path), min_round_trips(row.baseline)) == (1, 1)
    assert all(call.buffers > 0 and call.wal > 0 for call in row.path)
    # Round trips, not WAL: Postgres writes records of its own at any moment.
    assert sum(call.round_trips for call in row.admissions) == 0


@pytest.mark.parametrize("n", [1, 100])
def test_group_admission_is_not_on_the_path_of_a_claim(rows: Rows, n: int) -> None:
    row = rows["claim: 1 per group, 100 groups", n]
    assert min_round_trips(row.path) == 1
    assert sum(call.wal for call in row.admissions) > 0
