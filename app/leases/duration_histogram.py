"""Histograms of wait and run times by lane, kept in memory.

The stats service writes the histograms to the database every second. A killed process loses at most
the samples of one second. The loss is acceptable, because percentiles are estimates. The counts of
jobs are exact, because they are kept in SQL.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from typing import Literal

Kind = Literal["wait", "run"]

# Upper bounds of the buckets in milliseconds. Below 7 ms each whole millisecond is a bound; from
# 7 ms on, the bounds are about 25 % apart. No percentile is off by more than one bucket. The last
# bucket also counts all longer durations.
BUCKET_BOUNDS = tuple(sorted({round(1.25**step) for step in range(94)}))


class DurationHistogram:
    def __init__(self) -> None:
        self._counts: Counter[tuple[int, Kind, int]] = Counter()

    def record(self, lane: int, kind: Kind, seconds: Iterable[float]) -> None:
        """Counts each duration in its bucket.

        Adds equal durations that follow each other in one step, because the jobs of a batch often
        have the same duration.
        """
        for duration, equal in groupby(seconds):
            self._counts[lane, kind, min(bisect_left(BUCKET_BOUNDS, duration * 1000), len(BUCKET_BOUNDS) - 1)] += sum(
                1 for _ in equal
            )

    def take(self) -> dict[tuple[int, Kind, int], int]:
        """Returns the counts, and resets them to zero."""
        counts, self._counts = self._counts, Counter()
        return counts

    def restore(self, counts: dict[tuple[int, Kind, int], int]) -> None:
        """Adds counts that could not be written, so that the next write includes them."""
        self._counts.update(counts)
