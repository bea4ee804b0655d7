"""Job ids: increasing UUIDv7 that contain the lane of the job."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.db import lanes
from app.db.lanes import JobIdGenerator

# A broker of other tests runs in this process and uses `random` too; hypothesis would blame these
# tests.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)

LAST_LANE = 2**24 - 1
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
any_lane = st.integers(0, LAST_LANE)
instants = st.datetimes(datetime(2000, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


@given(any_lane, instants)
def test_id_is_a_uuid_v7_that_contains_its_lane(lane: int, now: datetime) -> None:
    job_id = JobIdGenerator().generate(lane, now)
    assert (job_id.version, job_id.variant) == (7, RFC_4122)
    assert lanes.lane_of(job_id) == lane
    assert (job_id, hash(job_id)) == (UUID(str(job_id)), hash(UUID(str(job_id))))


@given(any_lane, instants)
def test_id_contains_its_creation_time_in_milliseconds(lane: int, now: datetime) -> None:
    created = lanes.created_at(JobIdGenerator().generate(lane, now))
    assert timedelta(0) <= now - created < timedelta(milliseconds=1)


@given(st.lists(st.tuples(any_lane, st.integers(-5000, 5000)), min_size=2, max_size=30))
def test_ids_increase_even_if_the_clock_goes_back(requests: list[tuple[int, int]]) -> None:
    job_ids = JobIdGenerator()
    ids = [job_ids.generate(lane, NOON + timedelta(milliseconds=shift)) for lane, shift in requests]
    assert ids == sorted(set(ids))


@given(st.lists(st.lists(any_lane, max_size=20), max_size=5))
def test_ids_generated_together_keep_the_order_of_lanes_and_increase(batches: list[list[int]]) -> None:
    job_ids = JobIdGenerator()
    ids = [job_id for batch in batches for job_id in job_ids.generate_many(batch, NOON)]
    assert [lanes.lane_of(job_id) for job_id in ids] == [lane for batch in batches for lane in batch]
    assert ids == sorted(set(ids))


def test_ids_beyond_the_capacity_of_a_millisecond_still_increase() -> None:
    job_ids = JobIdGenerator()
    ids = [job_ids.generate(0, NOON) for _ in range(5000)]
    assert ids == sorted(set(ids))
    assert lanes.created_at(ids[-1]) - NOON == timedelta(milliseconds=1)


def test_ids_generated_together_are_those_generated_one_by_one_except_for_random_bits() -> None:
    alone, together = JobIdGenerator(), JobIdGenerator()
    ids = [alone.generate(7, NOON) for _ in range(10_000)]
    batches = [together.generate_many([7] * size, NOON) for size in (1, 0, 4095, 1, 5903)]
    assert [job_id.int >> 38 for batch in batches for job_id in batch] == [job_id.int >> 38 for job_id in ids]


@given(any_lane, instants, instants)
def test_first_id_of_an_instant_separates_earlier_from_later_ids(lane: int, now: datetime, instant: datetime) -> None:
    now, instant = now.replace(microsecond=0), instant.replace(microsecond=0)
    assert (JobIdGenerator().generate(lane, now) >= lanes.first_id_at(instant)) == (now >= instant)


def test_first_id_of_the_earliest_time_is_zero() -> None:
    assert lanes.first_id_at(datetime.min.replace(tzinfo=UTC)) == UUID(int=0)


@given(st.integers(1, 65_535), st.integers(1, 256))
def test_lanes_of_a_queue_contain_its_id(queue_id: int, count: int) -> None:
    queue_lanes = lanes.lanes_of(queue_id, count)
    assert {lanes.queue_id_of(lane) for lane in queue_lanes} == {queue_id}
    assert queue_lanes[-1] <= LAST_LANE
    assert queue_lanes[0] >= lanes.KEY_LANES


@given(st.text(), st.text(), st.text(), st.text())
def test_digest_separates_its_parts(a: str, b: str, c: str, d: str) -> None:
    is_same = (a, b) == (c, d) or "\x1f" in a + b + c + d
    assert is_same or lanes.digest(a, b) != lanes.digest(c, d)


def test_keys_are_distributed_over_all_lanes() -> None:
    used_lanes = {lanes.lane_of_key(lanes.digest(str(number)), 8) for number in range(1000)}
    assert used_lanes == set(range(8))


@given(st.lists(any_lane, max_size=20))
def test_grouped_ids_are_sorted_by_lane_and_id(job_lanes: list[int]) -> None:
    job_ids = JobIdGenerator()
    grouped = lanes.group_by_lane([job_ids.generate(lane, NOON) for lane in job_lanes], lambda job_id: job_id)
    assert list(grouped) == sorted(set(job_lanes))
    assert all(ids == sorted(ids) for ids in grouped.values())
    assert sum(len(ids) for ids in grouped.values()) == len(job_lanes)


@given(st.lists(any_lane, max_size=30), st.integers(1, 5))
def test_batches_by_lane_have_each_id_once_in_lock_order(job_lanes: list[int], size: int) -> None:
    job_ids = JobIdGenerator()
    ids = [job_ids.generate(lane, NOON) for lane in job_lanes]

    async def collect() -> list[tuple[int, list[UUID]]]:
        return [batch async for batch in lanes.batches_by_lane(reversed(ids), size)]

    batches = asyncio.run(collect())
    assert sorted(job_id for _, batch in batches for job_id in batch) == sorted(ids)
    assert [lane for lane, _ in batches] == sorted(lane for lane, _ in batches)
    for lane, batch in batches:
        assert batch == sorted(batch)
        assert len(batch) <= size
        assert {lanes.lane_of(job_id) for job_id in batch} == {lane}
