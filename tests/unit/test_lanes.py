"""Ids: UUIDv7 that carry the lane of their job, and grow."""

from datetime import UTC, datetime, timedelta
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.db import lanes
from app.db.lanes import JobIdGenerator

# The broker of other tests lives in this process and rolls dice too: hypothesis takes that for ours.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)

LAST_LANE = 2**24 - 1
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
any_lane = st.integers(0, LAST_LANE)
instants = st.datetimes(datetime(2000, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


@given(any_lane, instants)
def test_an_id_is_a_uuid_v7_that_carries_its_lane(lane: int, now: datetime) -> None:
    job_id = JobIdGenerator(lambda: now)(lane)
    assert (job_id.version, job_id.variant) == (7, RFC_4122)
    assert lanes.lane_of(job_id) == lane
    assert (job_id, hash(job_id)) == (UUID(str(job_id)), hash(UUID(str(job_id))))


@given(any_lane, instants)
def test_an_id_tells_when_it_was_minted_to_the_millisecond(lane: int, now: datetime) -> None:
    told = lanes.created_at(JobIdGenerator(lambda: now)(lane))
    assert timedelta(0) <= now - told < timedelta(milliseconds=1)


@given(st.lists(st.tuples(any_lane, st.integers(-5000, 5000)), min_size=2, max_size=30))
def test_ids_grow_even_when_the_clock_goes_back(minted: list[tuple[int, int]]) -> None:
    clock = iter([NOON + timedelta(milliseconds=shift) for _, shift in minted])
    job_ids = JobIdGenerator(lambda: next(clock))
    ids = [job_ids(lane) for lane, _ in minted]
    assert ids == sorted(set(ids))


@given(st.lists(st.lists(any_lane, max_size=20), max_size=5))
def test_ids_that_are_minted_together_are_in_the_order_of_their_lanes_and_grow(together: list[list[int]]) -> None:
    job_ids = JobIdGenerator(lambda: NOON)
    ids = [job_id for some in together for job_id in job_ids.several(some)]
    assert [lanes.lane_of(job_id) for job_id in ids] == [lane for some in together for lane in some]
    assert ids == sorted(set(ids))


def test_more_ids_than_a_millisecond_has_room_for_still_grow() -> None:
    job_ids = JobIdGenerator(lambda: NOON)
    ids = [job_ids(0) for _ in range(5000)]
    assert ids == sorted(set(ids))
    assert lanes.created_at(ids[-1]) - NOON == timedelta(milliseconds=1)


@given(any_lane, instants, instants)
def test_the_first_id_of_an_instant_divides_before_from_after(lane: int, now: datetime, bound: datetime) -> None:
    now, bound = now.replace(microsecond=0), bound.replace(microsecond=0)
    assert (JobIdGenerator(lambda: now)(lane) >= lanes.first_id_at(bound)) == (now >= bound)


def test_before_all_ids_there_is_a_first_one() -> None:
    assert lanes.first_id_at(datetime.min.replace(tzinfo=UTC)) == UUID(int=0)


@given(st.integers(1, 65_535), st.integers(1, 256))
def test_the_lanes_of_a_queue_name_the_queue(queue_id: int, count: int) -> None:
    own = lanes.lanes_of(queue_id, count)
    assert {lanes.queue_id_of(lane) for lane in own} == {queue_id}
    assert own[-1] <= LAST_LANE
    assert own[0] >= lanes.KEY_LANES


@given(st.text(), st.text(), st.text(), st.text())
def test_a_digest_keeps_its_parts_apart(a: str, b: str, c: str, d: str) -> None:
    same = (a, b) == (c, d) or "\x1f" in a + b + c + d
    assert same or lanes.digest(a, b) != lanes.digest(c, d)


def test_keys_spread_over_all_lanes() -> None:
    spread = {lanes.lane_of_key(lanes.digest(str(number)), 8) for number in range(1000)}
    assert spread == set(range(8))


@given(st.lists(any_lane, max_size=20))
def test_locks_are_taken_in_the_order_of_lanes_and_ids(chosen: list[int]) -> None:
    job_ids = JobIdGenerator(lambda: NOON)
    grouped = lanes.by_lane([job_ids(lane) for lane in chosen], lambda job_id: job_id)
    assert list(grouped) == sorted(set(chosen))
    assert all(ids == sorted(ids) for ids in grouped.values())
    assert sum(len(ids) for ids in grouped.values()) == len(chosen)
