"""Percentiles from a ladder of buckets: estimates, but never off by more than a rung."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.leases.duration_histogram import BUCKET_BOUNDS, DurationHistogram
from app.stats.service import _percentile
from app.stats.store import DurationRow

# The broker of other tests lives in this process and rolls dice too: hypothesis takes that for ours.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)

spans = st.lists(st.integers(1, 10**8), min_size=1, max_size=50)


def recorded(milliseconds: list[int]) -> list[DurationRow]:
    times = DurationHistogram()
    times.record(0, "run", [span / 1000 for span in milliseconds])
    return [DurationRow("run", bucket, n) for (_, _, bucket), n in sorted(times.take().items())]


def test_rungs_grow_by_a_quarter_and_reach_beyond_a_week() -> None:
    assert list(BUCKET_BOUNDS) == sorted(set(BUCKET_BOUNDS))
    assert BUCKET_BOUNDS[0] == 1
    assert BUCKET_BOUNDS[-1] > 7 * 24 * 60 * 60 * 1000
    assert all(higher <= lower * 1.25 + 1 for lower, higher in pairwise(BUCKET_BOUNDS))


@given(spans, st.sampled_from([0.5, 0.95, 0.99]))
def test_a_percentile_is_at_most_a_rung_above_the_truth(milliseconds: list[int], share: float) -> None:
    below = sorted(milliseconds)
    told = _percentile(recorded(milliseconds), share)
    truth = next(span for index, span in enumerate(below, 1) if index >= share * len(below))
    assert truth <= told <= truth * 1.25 + 1


@given(spans)
def test_every_span_is_counted_once(milliseconds: list[int]) -> None:
    assert sum(row.n for row in recorded(milliseconds)) == len(milliseconds)


def test_a_span_beyond_the_ladder_is_on_its_last_rung() -> None:
    assert [row.bucket for row in recorded([10**12])] == [len(BUCKET_BOUNDS) - 1]


def test_a_clock_that_went_back_counts_as_no_time() -> None:
    assert [row.bucket for row in recorded([-5000])] == [0]


def test_what_was_taken_and_could_not_be_written_is_put_back() -> None:
    times = DurationHistogram()
    times.record(7, "wait", [0.0])
    taken = times.take()
    assert times.take() == {}
    times.record(7, "wait", [0.0])
    times.restore(taken)
    assert times.take() == {(7, "wait", 0): 2}
