"""Many callers, one statement: who shares which, and who hears of what goes wrong."""

import asyncio
from collections.abc import Sequence

import asyncpg
import pytest

from app.db.batcher import MAX_CALLS, MAX_WEIGHT, Batcher
from app.db.write_outcome import has_written, mark_written, reset_written
from app.errors import DatabaseUnavailable, Outcome

PATIENCE = 60.0


class Statements:
    """What was run together. While `gate` is closed nothing is done."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self.batches: list[tuple[str, list[int]]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: Exception | None = None
        self.weights: dict[int, int] = {}
        self.batcher = Batcher("test", self.run, patience, weigh=lambda number: self.weights.get(number, 1))

    async def run(self, lane: str, numbers: Sequence[int]) -> list[int]:
        self.batches.append((lane, list(numbers)))
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        if any(number < 0 for number in numbers):
            raise asyncpg.DataError("a bad row")
        return [10 * number for number in numbers]


async def arrive(statements: Statements, *numbers: int, lane: str = "a") -> "list[asyncio.Task[int]]":
    """All of them are waiting, or being served, when this returns."""
    tasks = [asyncio.create_task(statements.batcher.add(lane, number)) for number in numbers]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


def test_who_comes_while_a_statement_is_on_its_way_shares_the_next() -> None:
    async def scenario() -> None:
        statements = Statements()
        statements.gate.clear()
        first = await arrive(statements, 1)
        others = await arrive(statements, 2, 3, 4)
        statements.gate.set()
        assert await asyncio.gather(*first, *others) == [10, 20, 30, 40]
        assert statements.batches == [("a", [1]), ("a", [2, 3, 4])]

    asyncio.run(scenario())


def test_who_comes_in_the_same_moment_shares_one_and_a_lone_caller_has_his_own() -> None:
    async def scenario() -> None:
        statements = Statements()
        assert await asyncio.gather(*(statements.batcher.add("a", number) for number in range(3))) == [0, 10, 20]
        assert await statements.batcher.add("a", 7) == 70
        assert statements.batches == [("a", [0, 1, 2]), ("a", [7])]

    asyncio.run(scenario())


def test_lanes_do_not_wait_for_each_other() -> None:
    async def scenario() -> None:
        statements = Statements()
        statements.gate.clear()
        tasks = await arrive(statements, 1) + await arrive(statements, 2, lane="b")
        assert statements.batches == [("a", [1]), ("b", [2])]
        statements.gate.set()
        assert await asyncio.gather(*tasks) == [10, 20]

    asyncio.run(scenario())


def test_a_crowd_is_served_in_portions() -> None:
    async def scenario() -> None:
        statements = Statements()
        await asyncio.gather(*(statements.batcher.add("a", number) for number in range(2 * MAX_CALLS + 1)))
        assert [len(numbers) for _, numbers in statements.batches] == [MAX_CALLS, MAX_CALLS, 1]

    asyncio.run(scenario())


def test_a_portion_is_not_too_heavy() -> None:
    async def scenario() -> None:
        statements = Statements()
        statements.weights = {1: MAX_WEIGHT - 1, 2: 2, 3: MAX_WEIGHT // 2, 4: MAX_WEIGHT // 2 - 1, 5: 2}
        await asyncio.gather(*(statements.batcher.add("a", number) for number in range(1, 6)))
        assert [numbers for _, numbers in statements.batches] == [[1], [2, 3], [4, 5]]

    asyncio.run(scenario())


def test_who_is_as_heavy_as_a_statement_may_be_waits_for_nobody() -> None:
    async def scenario() -> None:
        statements = Statements()
        statements.weights = {2: MAX_WEIGHT}
        statements.gate.clear()
        tasks = await arrive(statements, 1) + await arrive(statements, 2)
        assert statements.batches == [("a", [1]), ("a", [2])]
        statements.gate.set()
        assert await asyncio.gather(*tasks) == [10, 20]

    asyncio.run(scenario())


def test_one_bad_row_fails_no_neighbour() -> None:
    async def scenario() -> None:
        statements = Statements()
        answers = await asyncio.gather(
            *(statements.batcher.add("a", number) for number in (1, -1, 2)), return_exceptions=True
        )
        assert [answers[0], type(answers[1]), answers[2]] == [10, asyncpg.DataError, 20]
        assert await statements.batcher.add("a", 3) == 30

    asyncio.run(scenario())


def test_who_waits_behind_a_statement_that_does_not_end_goes_away_unserved() -> None:
    async def scenario() -> None:
        statements = Statements(patience=0.01)
        statements.gate.clear()
        (first,) = await arrive(statements, 1)
        for number in (2, 3):
            with pytest.raises(DatabaseUnavailable) as refusal:
                await statements.batcher.add("a", number)
            assert refusal.value.outcome == "not_done"
        statements.gate.set()
        assert await first == 10
        assert await statements.batcher.add("a", 4) == 40
        assert statements.batches == [("a", [1]), ("a", [4])]

    asyncio.run(scenario())


@pytest.mark.parametrize(("outcome", "later"), [("unknown", "unknown"), ("not_done", "not_done")])
def test_all_who_shared_a_statement_hear_what_became_of_it(outcome: Outcome, later: Outcome) -> None:
    """And one that may have written says `unknown` of everything that fails after it, in each of their requests."""

    async def scenario() -> None:
        statements = Statements()
        statements.failure = DatabaseUnavailable("gone", outcome)
        answers = await asyncio.gather(
            *(statements.batcher.add("a", number) for number in range(3)), return_exceptions=True
        )
        assert [getattr(answer, "outcome", None) for answer in answers] == [outcome] * 3
        assert await asyncio.gather(*(_marked(statements) for _ in range(2))) == [later == "unknown"] * 2

    asyncio.run(scenario())


async def _marked(statements: Statements) -> bool:
    reset_written()
    with pytest.raises(DatabaseUnavailable):
        await statements.batcher.add("a", 1)
    return has_written()


def test_what_the_first_caller_has_written_before_does_not_concern_the_others() -> None:
    async def scenario() -> None:
        seen: list[bool] = []

        async def run(_lane: str, numbers: Sequence[int]) -> Sequence[int]:
            seen.append(has_written())
            return numbers

        mark_written()
        await Batcher("test", run, PATIENCE, weigh=lambda _: 1).add("a", 1)
        assert seen == [False]

    asyncio.run(scenario())
