"""Percentiles from the duration histogram: estimates that are never off by more than one bucket."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.leases.duration_histogram import BUCKET_BOUNDS, DurationHistogram
from app.stats.service import _percentile
from app.stats.store import DurationRow

# A broker of other tests runs in this process and uses `random` too; hypothesis would blame these
# tests.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)

durations = st.lists(st.integers(1, 10**8), min_size=1, max_size=50)


def recorded(milliseconds: list[int]) -> list[DurationRow]:
    histogram = DurationHistogram()
    histogram.record(0, "run", [duration / 1000 for duration in milliseconds])
    return [DurationRow("run", bucket, n) for (_, _, bucket), n in sorted(histogram.take().items())]


def test_bucket_bounds_grow_by_a_quarter_and_exceed_a_week() -> None:
    assert list(BUCKET_BOUNDS) == sorted(set(BUCKET_BOUNDS))
    assert BUCKET_BOUNDS[0] == 1
    assert BUCKET_BOUNDS[-1] > 7 * 24 * 60 * 60 * 1000
    assert all(higher <= lower * 1.25 + 1 for lower, higher in pairwise(BUCKET_BOUNDS))


@given(durations, st.sampled_from([0.5, 0.95, 0.99]))
def test_percentile_is_at_most_one_bucket_above_the_exact_value(milliseconds: list[int], quantile: float) -> None:
    ordered = sorted(milliseconds)
    estimate = _percentile(recorded(milliseconds), quantile)
    exact = next(duration for index, duration in enumerate(ordered, 1) if index >= quantile * len(ordered))
    assert exact <= estimate <= exact * 1.25 + 1


@given(durations)
def test_every_duration_is_counted_once(milliseconds: list[int]) -> None:
    assert sum(row.total for row in recorded(milliseconds)) == len(milliseconds)


def test_duration_above_all_bounds_is_in_the_last_bucket() -> None:
    assert [row.bucket for row in recorded([10**12])] == [len(BUCKET_BOUNDS) - 1]


def test_negative_duration_counts_as_zero() -> None:
    assert [row.bucket for row in recorded([-5000])] == [0]


def test_restored_counts_are_added_to_new_counts() -> None:
    histogram = DurationHistogram()
    histogram.record(7, "wait", [0.0])
    counts = histogram.take()
    assert histogram.take() == {}
    histogram.record(7, "wait", [0.0])
    histogram.restore(counts)
    assert histogram.take() == {(7, "wait", 0): 2}
