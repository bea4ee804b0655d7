"""Natural batching: which calls share a statement, and which calls get its errors."""

import asyncio
from collections.abc import Sequence

import asyncpg
import pytest

from app.db.batcher import MAX_CALLS, MAX_WEIGHT, Batcher
from app.db.write_outcome import has_written, mark_written, reset_written
from app.errors import DatabaseUnavailable, Outcome

TIMEOUT = 60.0


class FakeBatcher(Batcher[str, int, int]):
    """A batcher with a fake statement that records its batches.

    It blocks until `proceed` is set."""

    def __init__(self, timeout: float = TIMEOUT) -> None:
        super().__init__("test", timeout)
        self.batches: list[tuple[str, list[int]]] = []
        self.proceed = asyncio.Event()
        self.proceed.set()
        self.failure: Exception | None = None
        self.had_written: list[bool] = []

    async def run_batch(self, lane: str, numbers: Sequence[int]) -> list[int]:
        self.had_written.append(has_written())
        self.batches.append((lane, list(numbers)))
        await self.proceed.wait()
        if self.failure is not None:
            raise self.failure
        if any(number < 0 for number in numbers):
            raise asyncpg.DataError("a bad row")
        mark_written()
        return [10 * number for number in numbers]


async def add_calls(batcher: FakeBatcher, *numbers: int, lane: str = "a", weight: int = 1) -> "list[asyncio.Task[int]]":
    """Adds calls. When this returns, all of them are waiting or part of a running statement."""
    tasks = [asyncio.create_task(batcher.add(lane, number, weight)) for number in numbers]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


def test_calls_during_a_statement_share_the_next_one() -> None:
    async def scenario() -> None:
        batcher = FakeBatcher()
        batcher.proceed.clear()
        first = await add_calls(batcher, 1)
        waiting = await add_calls(batcher, 2, 3, 4)
        batcher.proceed.set()
        assert await asyncio.gather(*first, *waiting) == [10, 20, 30, 40]
        assert batcher.batches == [("a", [1]), ("a", [2, 3, 4])]

    asyncio.run(scenario())


def test_simultaneous_calls_share_a_statement_and_a_single_call_has_its_own() -> None:
    async def scenario() -> None:
        batcher = FakeBatcher()
        assert await asyncio.gather(*(batcher.add("a", number, 1) for number in range(3))) == [0, 10, 20]
        assert await batcher.add("a", 7, 1) == 70
        assert batcher.batches == [("a", [0, 1, 2]), ("a", [7])]

    asyncio.run(scenario())


def test_lanes_do_not_wait_for_each_other() -> None:
    async def scenario() -> None:
        batcher = FakeBatcher()
        batcher.proceed.clear()
        tasks = await add_calls(batcher, 1) + await add_calls(batcher, 2, lane="b")
        assert batcher.batches == [("a", [1]), ("b", [2])]
        batcher.proceed.set()
        assert await asyncio.gather(*tasks) == [10, 20]

    asyncio.run(scenario())


def test_many_calls_are_split_into_batches_of_max_calls() -> None:
    async def scenario() -> None:
        batcher = FakeBatcher()
        await asyncio.gather(*(batcher.add("a", number, 1) for number in range(2 * MAX_CALLS + 1)))
        assert [len(numbers) for _, numbers in batcher.batches] == [MAX_CALLS, MAX_CALLS, 1]

    asyncio.run(scenario())


def test_batch_weight_is_limited() -> None:
    async def scenario() -> None:
        batcher = FakeBatcher()
        weights = {1: MAX_WEIGHT - 1, 2: 2, 3: MAX_WEIGHT // 2, 4: MAX_WEIGHT // 2 - 1, 5: 2}
        await asyncio.gather(*(batcher.add("a", number, weight) for number, weight in weights.items()))
        assert [numbers for _, numbers in batcher.batches] == [[1], [2, 3], [4, 5]]

    asyncio.run(scenario())


def test_call_of_maximum_weight_runs_at_once() -> None:
    async def scenario() -> None:
        batcher = FakeBatcher()
        batcher.proceed.clear()
        tasks = await add_calls(batcher, 1) + await add_calls(batcher, 2, weight=MAX_WEIGHT)
        assert batcher.batches == [("a", [1]), ("a", [2])]
        batcher.proceed.set()
        assert await asyncio.gather(*tasks) == [10, 20]

    asyncio.run(scenario())


def test_bad_row_fails_only_its_own_call() -> None:
    async def scenario() -> None:
        batcher = FakeBatcher()
        results = await asyncio.gather(*(batcher.add("a", number, 1) for number in (1, -1, 2)), return_exceptions=True)
        assert [results[0], type(results[1]), results[2]] == [10, asyncpg.DataError, 20]
        assert await batcher.add("a", 3, 1) == 30

    asyncio.run(scenario())


def test_call_behind_a_hanging_statement_times_out_as_not_done() -> None:
    async def scenario() -> None:
        batcher = FakeBatcher(timeout=0.01)
        batcher.proceed.clear()
        (first,) = await add_calls(batcher, 1)
        for number in (2, 3):
            with pytest.raises(DatabaseUnavailable) as raised:
                await batcher.add("a", number, 1)
            assert raised.value.outcome == "not_done"
        batcher.proceed.set()
        assert await first == 10
        assert await batcher.add("a", 4, 1) == 40
        assert batcher.batches == [("a", [1]), ("a", [4])]

    asyncio.run(scenario())


def test_call_that_did_not_fit_into_a_hanging_statement_times_out_as_not_done() -> None:
    async def scenario() -> None:
        batcher = FakeBatcher(timeout=0.01)
        batcher.proceed.clear()
        *included, last = await add_calls(batcher, *range(MAX_CALLS + 1))
        with pytest.raises(DatabaseUnavailable) as raised:
            await last
        assert raised.value.outcome == "not_done"
        batcher.proceed.set()
        assert await asyncio.gather(*included) == [10 * number for number in range(MAX_CALLS)]

    asyncio.run(scenario())


def test_finish_waits_for_running_waiting_and_retried_calls() -> None:
    async def scenario() -> None:
        batcher = FakeBatcher()
        batcher.proceed.clear()
        tasks = await add_calls(batcher, 1) + await add_calls(batcher, 2, -1) + await add_calls(batcher, 3, lane="b")
        finished = asyncio.create_task(batcher.finish())
        await asyncio.sleep(0)
        assert not finished.done()
        batcher.proceed.set()
        await finished
        assert await asyncio.gather(*tasks[:2], tasks[3]) == [10, 20, 30]
        assert isinstance(tasks[2].exception(), asyncpg.DataError)

    asyncio.run(scenario())


@pytest.mark.parametrize(("outcome", "later"), [("unknown", "unknown"), ("not_done", "not_done")])
def test_all_calls_of_a_failed_statement_get_its_outcome(outcome: Outcome, later: Outcome) -> None:
    """After outcome `unknown`, each of these requests counts as having written."""

    async def scenario() -> None:
        batcher = FakeBatcher()
        batcher.failure = DatabaseUnavailable("gone", outcome)
        results = await asyncio.gather(*(batcher.add("a", number, 1) for number in range(3)), return_exceptions=True)
        assert [getattr(result, "outcome", None) for result in results] == [outcome] * 3
        assert (
            await asyncio.gather(*(_has_written_after_failure(batcher) for _ in range(2))) == [later == "unknown"] * 2
        )

    asyncio.run(scenario())


async def _has_written_after_failure(batcher: FakeBatcher) -> bool:
    reset_written()
    with pytest.raises(DatabaseUnavailable):
        await batcher.add("a", 1, 1)
    return has_written()


def test_earlier_writes_of_the_first_caller_are_not_attributed_to_the_batch() -> None:
    async def scenario() -> None:
        batcher = FakeBatcher()
        mark_written()
        await batcher.add("a", 1, 1)
        assert batcher.had_written == [False]

    asyncio.run(scenario())


def test_writes_of_a_batch_are_not_attributed_to_the_next_one() -> None:
    async def scenario() -> None:
        batcher = FakeBatcher()
        batcher.proceed.clear()
        tasks = await add_calls(batcher, 1) + await add_calls(batcher, 2)
        batcher.proceed.set()
        await asyncio.gather(*tasks)
        assert batcher.batches == [("a", [1]), ("a", [2])]
        assert batcher.had_written == [False, False]

    asyncio.run(scenario())
