"""Counts jobs and delimits the measured span: after a warm-up, with the CPU used in it."""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import Any, NamedTuple

from bench.load.order import Figures, Order
from bench.machine import cpu_of

WARM_SHARE = 0.1  # of a drain


class Tally:
    """Counts finished jobs, and lets one caller wait for a number of them."""

    def __init__(self) -> None:
        self.jobs = 0
        self.over = False
        self._target = 0
        self._reached: asyncio.Future[None] | None = None

    def add(self, jobs: int) -> None:
        self.jobs += jobs
        if self._reached is not None and self.jobs >= self._target and not self._reached.done():
            self._reached.set_result(None)

    async def wait_for(self, jobs: int) -> None:
        if self.jobs < jobs:
            self._target, self._reached = jobs, asyncio.get_running_loop().create_future()
            await self._reached


class Reading(NamedTuple):
    time: float
    jobs: int
    server: float
    database: float
    load: float


def read_counters(order: Order, tally: Tally) -> Reading:
    return Reading(time.perf_counter(), tally.jobs, cpu_of(*order.server), cpu_of(*order.database), time.process_time())


def figures(begin: Reading, end: Reading, total: int) -> Figures:
    return {
        "jobs": end.jobs - begin.jobs,
        "seconds": end.time - begin.time,
        "cpu_server": end.server - begin.server,
        "cpu_database": end.database - begin.database,
        "cpu_load": end.load - begin.load,
        "total": total,
    }


async def run_for_seconds(order: Order, tally: Tally, callers: Sequence[Awaitable[None]]) -> Figures:
    """Callers run until `tally.over`. Requests in flight then are answered, and count only in the total."""
    running = asyncio.gather(*callers)
    begin = await _or_callers_end(running, _after(order.warm_up, order, tally))
    end = await _or_callers_end(running, _after(order.seconds, order, tally))
    tally.over = True
    await running
    return figures(begin, end, tally.jobs)


async def run_to_end(order: Order, tally: Tally, callers: Sequence[Awaitable[None]]) -> Figures:
    """Callers run until no job is left; the span ends with the last job."""
    running = asyncio.gather(*callers)
    begin = await _or_callers_end(running, _reached(round(order.jobs * WARM_SHARE), order, tally))
    end = await _or_callers_end(running, _reached(order.jobs, order, tally))
    await running
    return figures(begin, end, tally.jobs)


async def _after(seconds: float, order: Order, tally: Tally) -> Reading:
    await asyncio.sleep(seconds)
    return read_counters(order, tally)


async def _reached(jobs: int, order: Order, tally: Tally) -> Reading:
    await tally.wait_for(jobs)
    return read_counters(order, tally)


async def _or_callers_end(running: "asyncio.Future[list[None]]", reading: Awaitable[Reading]) -> Reading:
    """Ends the wait if a caller fails, or if the callers have nothing left to do too early."""
    waiting: asyncio.Future[Reading] = asyncio.ensure_future(reading)
    both: list[asyncio.Future[Any]] = [running, waiting]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if not waiting.done():
        await asyncio.sleep(0)  # the last job ends its caller in the same iteration of the loop
    if not waiting.done():
        waiting.cancel()
        await running
        raise RuntimeError("the callers had nothing left to do, and jobs are missing")
    return waiting.result()
