"""Natural batching: which calls share a statement, and which calls get its errors."""

import asyncio
from collections.abc import Sequence

import asyncpg
import pytest

from app.db.batcher import MAX_CALLS, MAX_WEIGHT, Batcher
from app.db.write_outcome import has_written, mark_written, reset_written
from app.errors import DatabaseUnavailable, Outcome

TIMEOUT = 60.0


class Statements:
    """A batcher with a fake statement that records its batches.

    It blocks until `proceed` is set."""

    def __init__(self, timeout: float = TIMEOUT) -> None:
        self.batches: list[tuple[str, list[int]]] = []
        self.proceed = asyncio.Event()
        self.proceed.set()
        self.failure: Exception | None = None
        self.weights: dict[int, int] = {}
        self.batcher = Batcher("test", self.run, timeout, weigh=lambda number: self.weights.get(number, 1))

    async def run(self, lane: str, numbers: Sequence[int]) -> list[int]:
        self.batches.append((lane, list(numbers)))
        await self.proceed.wait()
        if self.failure is not None:
            raise self.failure
        if any(number < 0 for number in numbers):
            raise asyncpg.DataError("a bad row")
        return [10 * number for number in numbers]


async def add_calls(statements: Statements, *numbers: int, lane: str = "a") -> "list[asyncio.Task[int]]":
    """Adds calls. When this returns, all of them are waiting or part of a running statement."""
    tasks = [asyncio.create_task(statements.batcher.add(lane, number)) for number in numbers]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


def test_calls_during_a_statement_share_the_next_one() -> None:
    async def scenario() -> None:
        statements = Statements()
        statements.proceed.clear()
        first = await add_calls(statements, 1)
        waiting = await add_calls(statements, 2, 3, 4)
        statements.proceed.set()
        assert await asyncio.gather(*first, *waiting) == [10, 20, 30, 40]
        assert statements.batches == [("a", [1]), ("a", [2, 3, 4])]

    asyncio.run(scenario())


def test_simultaneous_calls_share_a_statement_and_a_single_call_has_its_own() -> None:
    async def scenario() -> None:
        statements = Statements()
        assert await asyncio.gather(*(statements.batcher.add("a", number) for number in range(3))) == [0, 10, 20]
        assert await statements.batcher.add("a", 7) == 70
        assert statements.batches == [("a", [0, 1, 2]), ("a", [7])]

    asyncio.run(scenario())


def test_lanes_do_not_wait_for_each_other() -> None:
    async def scenario() -> None:
        statements = Statements()
        statements.proceed.clear()
        tasks = await add_calls(statements, 1) + await add_calls(statements, 2, lane="b")
        assert statements.batches == [("a", [1]), ("b", [2])]
        statements.proceed.set()
        assert await asyncio.gather(*tasks) == [10, 20]

    asyncio.run(scenario())


def test_many_calls_are_split_into_batches_of_max_calls() -> None:
    async def scenario() -> None:
        statements = Statements()
        await asyncio.gather(*(statements.batcher.add("a", number) for number in range(2 * MAX_CALLS + 1)))
        assert [len(numbers) for _, numbers in statements.batches] == [MAX_CALLS, MAX_CALLS, 1]

    asyncio.run(scenario())


def test_batch_weight_is_limited() -> None:
    async def scenario() -> None:
        statements = Statements()
        statements.weights = {1: MAX_WEIGHT - 1, 2: 2, 3: MAX_WEIGHT // 2, 4: MAX_WEIGHT // 2 - 1, 5: 2}
        await asyncio.gather(*(statements.batcher.add("a", number) for number in range(1, 6)))
        assert [numbers for _, numbers in statements.batches] == [[1], [2, 3], [4, 5]]

    asyncio.run(scenario())


def test_call_of_maximum_weight_runs_at_once() -> None:
    async def scenario() -> None:
        statements = Statements()
        statements.weights = {2: MAX_WEIGHT}
        statements.proceed.clear()
        tasks = await add_calls(statements, 1) + await add_calls(statements, 2)
        assert statements.batches == [("a", [1]), ("a", [2])]
        statements.proceed.set()
        assert await asyncio.gather(*tasks) == [10, 20]

    asyncio.run(scenario())


def test_bad_row_fails_only_its_own_call() -> None:
    async def scenario() -> None:
        statements = Statements()
        results = await asyncio.gather(
            *(statements.batcher.add("a", number) for number in (1, -1, 2)), return_exceptions=True
        )
        assert [results[0], type(results[1]), results[2]] == [10, asyncpg.DataError, 20]
        assert await statements.batcher.add("a", 3) == 30

    asyncio.run(scenario())


def test_call_behind_a_hanging_statement_times_out_as_not_done() -> None:
    async def scenario() -> None:
        statements = Statements(timeout=0.01)
        statements.proceed.clear()
        (first,) = await add_calls(statements, 1)
        for number in (2, 3):
            with pytest.raises(DatabaseUnavailable) as raised:
                await statements.batcher.add("a", number)
            assert raised.value.outcome == "not_done"
        statements.proceed.set()
        assert await first == 10
        assert await statements.batcher.add("a", 4) == 40
        assert statements.batches == [("a", [1]), ("a", [4])]

    asyncio.run(scenario())


@pytest.mark.parametrize(("outcome", "later"), [("unknown", "unknown"), ("not_done", "not_done")])
def test_all_calls_of_a_failed_statement_get_its_outcome(outcome: Outcome, later: Outcome) -> None:
    """After outcome `unknown`, each of these requests counts as having written."""

    async def scenario() -> None:
        statements = Statements()
        statements.failure = DatabaseUnavailable("gone", outcome)
        results = await asyncio.gather(
            *(statements.batcher.add("a", number) for number in range(3)), return_exceptions=True
        )
        assert [getattr(result, "outcome", None) for result in results] == [outcome] * 3
        assert (
            await asyncio.gather(*(_has_written_after_failure(statements) for _ in range(2)))
            == [later == "unknown"] * 2
        )

    asyncio.run(scenario())


async def _has_written_after_failure(statements: Statements) -> bool:
    reset_written()
    with pytest.raises(DatabaseUnavailable):
        await statements.batcher.add("a", 1)
    return has_written()


def test_earlier_writes_of_the_first_caller_are_not_attributed_to_the_batch() -> None:
    async def scenario() -> None:
        flags: list[bool] = []

        async def run(_lane: str, numbers: Sequence[int]) -> Sequence[int]:
            flags.append(has_written())
            return numbers

        mark_written()
        await Batcher("test", run, TIMEOUT, weigh=lambda _: 1).add("a", 1)
        assert flags == [False]

    asyncio.run(scenario())
