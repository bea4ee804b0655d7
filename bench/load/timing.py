"""Counts jobs, and marks the span that is measured: after a warm-up, with the CPU that was used in it."""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import Any, NamedTuple

from bench.load.order import Figures, Order
from bench.machine import cpu_of

WARM_SHARE = 0.1  # of a drain


class Tally:
    """Jobs that are done, and somebody who waits for a number of them."""

    def __init__(self) -> None:
        self.jobs = 0
        self.over = False
        self._mark = 0
        self._reached: asyncio.Future[None] | None = None

    def add(self, jobs: int) -> None:
        self.jobs += jobs
        if self._reached is not None and self.jobs >= self._mark and not self._reached.done():
            self._reached.set_result(None)

    async def access(self, jobs: int) -> None:
        if self.jobs < jobs:
            self._mark, self._reached = jobs, asyncio.get_running_loop().create_future()
            await self._reached


class Moment(NamedTuple):
    at: float
    jobs: int
    server: float
    database: float
    load: float


def now(order: Order, tally: Tally) -> Moment:
    return Moment(time.perf_counter(), tally.jobs, cpu_of(*order.server), cpu_of(*order.database), time.process_time())


def figures(begin: Moment, end: Moment, total: int) -> Figures:
    return {
        "jobs": end.jobs - begin.jobs,
        "seconds": end.at - begin.at,
        "cpu_server": end.server - begin.server,
        "cpu_database": end.database - begin.database,
        "cpu_load": end.load - begin.load,
        "total": total,
    }


async def for_a_time(order: Order, tally: Tally, callers: Sequence[Awaitable[None]]) -> Figures:
    """Callers go on until `tally.over`; what is in flight then is answered, and counts in the total only."""
    running = asyncio.gather(*callers)
    begin = await _unless_ended(running, _after(order.warm_up, order, tally))
    end = await _unless_ended(running, _after(order.seconds, order, tally))
    tally.over = True
    await running
    return figures(begin, end, tally.jobs)


async def to_the_end(order: Order, tally: Tally, callers: Sequence[Awaitable[None]]) -> Figures:
    """Callers go on until nothing is left; the span ends with the last job."""
    running = asyncio.gather(*callers)
    begin = await _unless_ended(running, _reached(round(order.jobs * WARM_SHARE), order, tally))
    end = await _unless_ended(running, _reached(order.jobs, order, tally))
    await running
    return figures(begin, end, tally.jobs)


async def _after(seconds: float, order: Order, tally: Tally) -> Moment:
    await asyncio.sleep(seconds)
    return now(order, tally)


async def _reached(jobs: int, order: Order, tally: Tally) -> Moment:
    await tally.access(jobs)
    return now(order, tally)


async def _unless_ended(running: "asyncio.Future[list[None]]", moment: Awaitable[Moment]) -> Moment:
    """A caller that fails, or callers that find nothing more to do too early, end the wait."""
    waiting: asyncio.Future[Moment] = asyncio.ensure_future(moment)
    both: list[asyncio.Future[Any]] = [running, waiting]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if not waiting.done():
        await asyncio.sleep(0)  # the last job ends its caller in the same turn of the loop
    if not waiting.done():
        waiting.cancel()
        await running
        raise RuntimeError("the callers had nothing left to do, and jobs are missing")
    return waiting.result()
