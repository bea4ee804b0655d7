"""The measurement of policies, in a tiny size: that it still runs, and that it counts what is known."""

import pytest

from bench.meter import Tally
from bench.policies import ENTERINGS, HEAD, POLICIES, Row, measure
from bench.scene import Size
from tests.database import Loop, create_database

TINY = Size(singles=3, batches=2, warm_up=0, busy=20, running=5)
Rows = dict[tuple[str, int], Row]


@pytest.fixture(scope="module")
def rows(postgres: str, loop: Loop) -> Rows:
    dsn = create_database(postgres, loop, "bench_policies")
    return {(row.name, row.n): row for row in loop.run(measure(dsn, TINY))}


def least(calls: Tally) -> int:
    """A call that comes late after the last look for changed rules has to look itself."""
    return min(call.round_trips for call in calls)


def test_every_policy_has_a_row_for_calls_of_one_job_and_of_many(rows: Rows) -> None:
    names = [f"claim: {policy.name}" for policy in POLICIES] + [f"enqueue: {entering.name}" for entering in ENTERINGS]
    assert list(rows) == [(name, n) for name in names for n in (1, 100)]
    assert {row.written().count("|") for row in rows.values()} == {
        line.count("|") for line in HEAD.strip().splitlines()
    }


@pytest.mark.parametrize("n", [1, 100])
@pytest.mark.parametrize("verb", ["claim", "enqueue"])
def test_a_plain_queue_needs_one_statement(rows: Rows, verb: str, n: int) -> None:
    row = rows[f"{verb}: none", n]
    assert (least(row.path), least(row.beside)) == (1, 1)
    assert all(call.buffers > 0 and call.wal > 0 for call in row.path)
    assert sum(call.wal for call in row.group_scheduler) == 0


@pytest.mark.parametrize("n", [1, 100])
def test_whose_turn_it_is_is_decided_off_the_path_of_a_claim(rows: Rows, n: int) -> None:
    row = rows["claim: 1 per group, 100 groups", n]
    assert least(row.path) == 1
    assert sum(call.wal for call in row.group_scheduler) > 0
