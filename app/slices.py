"""Long work in parts: on the event loop, which serves other requests between them, or in C
functions, during which no other thread runs."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import TypeVar

R = TypeVar("R")
T = TypeVar("T")

SLICE_SECONDS = 0.001
SLICE_ITEMS = 100  # rows or jobs: each takes up to 10 µs


async def in_slices(items: Iterable[T]) -> AsyncIterator[T]:
    """Yields the items to a loop with a short body.

    After each SLICE_SECONDS the event loop serves other requests first."""
    started = perf_counter()
    for item in items:
        yield item
        if perf_counter() - started > SLICE_SECONDS:
            await asyncio.sleep(0)
            started = perf_counter()


async def map_in_slices(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Calls the function for each item.

    The event loop serves other requests after each SLICE_ITEMS. For fewer items this costs nothing,
    but `in_slices` costs 0.2 µs an item."""
    results = [*map(function, items[:SLICE_ITEMS])]
    for start in range(SLICE_ITEMS, len(items), SLICE_ITEMS):
        await asyncio.sleep(0)
        results += map(function, items[start : start + SLICE_ITEMS])
    return results


def by_size(items: Sequence[T], size: Callable[[T], int], max_size: int) -> Iterator[Sequence[T]]:
    """Splits the items into runs of at most `max_size` together. A larger item is a run of its
    own."""
    start = total = 0
    for index, item_size in enumerate(map(size, items)):
        if total + item_size > max_size and index > start:
            yield items[start:index]
            start, total = index, 0
        total += item_size
    if start < len(items):
        yield items[start:]
