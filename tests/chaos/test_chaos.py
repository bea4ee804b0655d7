"""The short form: 20,000 jobs and every nemesis at least once, on three brokers. `-s` shows its table."""

from tests.chaos.harness import run
from tests.chaos.nemeses import SHORT
from tests.chaos.options import Options


def test_nothing_is_lost_whatever_happens() -> None:
    summary = run(Options())
    print(f"\n{summary.table()}")
    assert summary.injected == set(SHORT)
    assert summary.is_clean, summary.table()
