"""The limit of recent worker ids per caller, and their writes."""

import asyncio
from collections.abc import Sequence

import pytest

from app.workers.registry import FORGET_SECONDS, LIMITS_PER_TABLE, RecentIds


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeTable:
    """Records the writes. Fails while `failure` is set."""

    def __init__(self) -> None:
        self.writes: list[list[str]] = []
        self.failure: Exception | None = None

    async def write(self, ids: Sequence[str], max_rows: int) -> None:
        assert max_rows == 2 * LIMITS_PER_TABLE
        if self.failure is not None:
            raise self.failure
        self.writes.append([*ids])


async def forget_ids(_ids: Sequence[str], _max_rows: int) -> None:
    """Writes nothing."""


def record(recent: RecentIds[str], recent_id: str, caller: str = "a") -> bool:
    """Records and writes the id: an unwritten id is not counted again."""
    is_listed = recent.record(recent_id, caller)
    asyncio.run(recent.write())
    return is_listed


def test_each_caller_has_its_own_limit() -> None:
    recent = RecentIds[str](2, forget_ids)
    listed = [record(recent, worker_id, caller) for caller in ("a", "b") for worker_id in ("1", "2", "3", "1")]
    assert listed == [True, True, False, True] * 2


def test_id_not_seen_for_a_day_frees_its_place() -> None:
    clock = Clock()
    recent = RecentIds[str](2, forget_ids, clock=clock)
    assert record(recent, "old")
    assert record(recent, "busy")
    clock.now = FORGET_SECONDS
    assert record(recent, "busy")
    assert not record(recent, "new")
    clock.now += 1
    assert record(recent, "new")
    assert not record(recent, "old")
    assert record(recent, "busy")


def test_number_of_remembered_ids_is_bounded() -> None:
    recent = RecentIds[str](100, forget_ids)
    assert sum(recent.record(str(number), "a") for number in range(100_000)) == 100


def test_ids_of_a_failed_write_are_written_by_the_next_one() -> None:
    table = FakeTable()
    recent = RecentIds[str](2, table.write)

    async def scenario() -> None:
        recent.record("2", "a")
        table.failure = ConnectionError()
        with pytest.raises(ConnectionError):
            await recent.write()
        table.failure = None
        recent.record("1", "a")
        await recent.write()
        await recent.write()  # nothing is left

    asyncio.run(scenario())
    assert table.writes == [["1", "2"]]


def test_ids_beyond_max_unwritten_are_skipped_until_the_next_write() -> None:
    table = FakeTable()
    recent = RecentIds[str](2, table.write, max_unwritten=1)

    async def scenario() -> None:
        for _ in range(2):
            assert recent.record("1", "a")
            assert recent.record("2", "a")
            await recent.write()
            assert recent.record("2", "a")
            await recent.write()

    asyncio.run(scenario())
    assert table.writes == [["1"], ["2"], ["1"], ["2"]]
