"""Divides long computations into slices of time. Between the slices the event loop serves other
requests.

A thread would not help: uvloop acquires the GIL for each event, and would wait for the thread each
time.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import TypeVar

R = TypeVar("R")
T = TypeVar("T")

SLICE_SECONDS = 0.0005


async def in_slices(items: Iterable[T]) -> AsyncIterator[T]:
    """Yields the items, for a loop with a short body. After each SLICE_SECONDS of work, lets the
    event loop serve other requests. If the work needs several slices, also does so at the end."""
    started, has_paused = perf_counter(), False
    for item in items:
        yield item
        if perf_counter() - started > SLICE_SECONDS:
            await asyncio.sleep(0)
            started, has_paused = perf_counter(), True
    if has_paused:
        await asyncio.sleep(0)


async def map_in_slices(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Calls the function for each item, and returns the results. Lets the event loop serve other
    requests in between, as `in_slices` does. Adds 0.1 µs to each call; `in_slices` would add
    0.3 µs."""
    results: list[R] = []
    started, has_paused = perf_counter(), False
    for item in items:
        results.append(function(item))
        if perf_counter() - started > SLICE_SECONDS:
            await asyncio.sleep(0)
            started, has_paused = perf_counter(), True
    if has_paused:
        await asyncio.sleep(0)
    return results


def by_size(items: Sequence[T], size: Callable[[T], int], max_size: int) -> Iterator[Sequence[T]]:
    """Divides the items, in their order, into sequences of a total size of at most `max_size`. An
    item that is larger gets a sequence of its own."""
    start = total = 0
    for index, item_size in enumerate(map(size, items)):
        if total + item_size > max_size and index > start:
            yield items[start:index]
            start, total = index, 0
        total += item_size
    if start < len(items):
        yield items[start:]
