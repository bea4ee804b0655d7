"""How long jobs waited and ran, counted per bucket in memory; the stats chore writes the counts down every second.

A killed process loses at most that second of samples: percentiles are estimates, counts (kept in SQL) are exact.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from typing import Literal

Kind = Literal["wait", "run"]

# Upper bounds in milliseconds, about 25 % apart: no percentile is off by more than that.
BUCKET_BOUNDS = tuple(sorted({round(1.25**step) for step in range(94)}))


class DurationHistogram:
    def __init__(self) -> None:
        self._counts: Counter[tuple[int, Kind, int]] = Counter()

    def record(self, lane: int, kind: Kind, seconds: Iterable[float]) -> None:
        """Those of a batch are often the same, one after the other."""
        for span, alike in groupby(seconds):
            self._counts[lane, kind, min(bisect_left(BUCKET_BOUNDS, span * 1000), len(BUCKET_BOUNDS) - 1)] += sum(
                1 for _ in alike
            )

    def take(self) -> dict[tuple[int, Kind, int], int]:
        taken, self._counts = self._counts, Counter()
        return taken

    def restore(self, counts: dict[tuple[int, Kind, int], int]) -> None:
        """They could not be written: once more next time."""
        self._counts.update(counts)
