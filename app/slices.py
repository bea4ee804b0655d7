"""Long work on the event loop, in slices: other calls are served between them."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from time import perf_counter
from typing import TypeVar

T = TypeVar("T")

SLICE_SECONDS = 0.001


async def in_slices(items: Iterable[T]) -> AsyncIterator[T]:
    """Yields the items to a loop whose body is short. After each SLICE_SECONDS the event loop serves other calls first."""
    began = perf_counter()
    for item in items:
        yield item
        if perf_counter() - began > SLICE_SECONDS:
            await asyncio.sleep(0)
            began = perf_counter()
