"""Long work on the event loop, in slices: the loop serves other requests between them."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from time import perf_counter
from typing import TypeVar

T = TypeVar("T")

SLICE_SECONDS = 0.001


async def in_slices(items: Iterable[T]) -> AsyncIterator[T]:
    """Yields the items to a loop with a short body.

    After each SLICE_SECONDS the event loop serves other requests first."""
    started = perf_counter()
    for item in items:
        yield item
        if perf_counter() - started > SLICE_SECONDS:
            await asyncio.sleep(0)
            started = perf_counter()
