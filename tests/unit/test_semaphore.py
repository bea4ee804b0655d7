"""The semaphore of the connection pool: which caller gets a slot, and that no slot is lost."""

import asyncio

from app.db.checkout import Semaphore


async def wait_for_slots(semaphore: Semaphore, count: int) -> "list[asyncio.Task[None]]":
    """Callers in the order of the list. When this returns, each holds a slot or waits."""
    tasks = [asyncio.create_task(semaphore.acquire()) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def holders(tasks: "list[asyncio.Task[None]]") -> list[bool]:
    for _ in range(3):
        await asyncio.sleep(0)
    return [task.done() and not task.cancelled() for task in tasks]


def test_released_slot_goes_to_the_first_waiter_and_is_never_free_for_others() -> None:
    async def scenario() -> None:
        semaphore = Semaphore(1)
        tasks = await wait_for_slots(semaphore, 3)
        assert await holders(tasks) == [True, False, False]
        semaphore.release()
        assert semaphore.free == 0
        assert await holders(tasks) == [True, True, False]
        semaphore.release()
        semaphore.release()
        assert await holders(tasks) == [True, True, True]
        assert semaphore.free == 1

    asyncio.run(scenario())


def test_cancelled_waiter_leaves_its_place_to_the_next() -> None:
    async def scenario() -> None:
        semaphore = Semaphore(1)
        tasks = await wait_for_slots(semaphore, 3)
        tasks[1].cancel()
        semaphore.release()
        assert await holders(tasks) == [True, False, True]
        semaphore.release()
        assert semaphore.free == 1

    asyncio.run(scenario())


def test_waiter_that_is_cancelled_at_the_moment_of_a_release_passes_the_slot_on() -> None:
    async def scenario() -> None:
        semaphore = Semaphore(1)
        tasks = await wait_for_slots(semaphore, 3)
        semaphore.release()
        tasks[1].cancel()
        assert await holders(tasks) == [True, False, True]
        semaphore.release()
        assert semaphore.free == 1

    asyncio.run(scenario())
