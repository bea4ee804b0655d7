"""The short form: 20,000 jobs and every nemesis at least once, on three brokers.

`-s` prints the table."""

from tests.chaos.harness import run
from tests.chaos.nemeses import SHORT
from tests.chaos.operation_counts import OPERATIONS
from tests.chaos.options import Options


def test_run_with_all_nemeses_has_no_violations() -> None:
    summary = run(Options())
    print(f"\n{summary.table()}")
    assert summary.injected == set(SHORT)
    assert OPERATIONS - summary.operations.keys() == set(), "the run does not check these operations"
    assert summary.is_clean, summary.table()
