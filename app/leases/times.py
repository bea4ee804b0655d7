"""How long jobs waited and ran, counted per bucket in memory; the stats chore writes the counts down every second.

A killed process loses at most that second of samples: percentiles are estimates, counts (kept in SQL) are exact.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Literal

Kind = Literal["wait", "run"]

# Upper bounds in milliseconds, about 25 % apart: no percentile is off by more than that.
LADDER = tuple(sorted({round(1.25**step) for step in range(94)}))


class Times:
    def __init__(self) -> None:
        self._counts: Counter[tuple[int, Kind, int]] = Counter()

    def record(self, lane: int, kind: Kind, spans: Iterable[tuple[datetime, datetime]]) -> None:
        for began, ended in spans:
            milliseconds = (ended - began).total_seconds() * 1000
            self._counts[lane, kind, min(bisect_left(LADDER, milliseconds), len(LADDER) - 1)] += 1

    def take(self) -> dict[tuple[int, Kind, int], int]:
        taken, self._counts = self._counts, Counter()
        return taken

    def put_back(self, counts: dict[tuple[int, Kind, int], int]) -> None:
        """They could not be written: once more next time."""
        self._counts.update(counts)
