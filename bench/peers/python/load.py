"""What all Python drivers share: callers that await each call, and a drain.

A drain counts jobs until the peer's own tables say that none is left. This runs in the benchmark's
environment, as a process of its own, and does not import the product.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import uvloop

PAYLOAD = {"text": "x" * 188}
QUEUE = "bench"
SETTLED_POLL_SECONDS = 0.002
FILL_CALL = 1000


@dataclass(frozen=True, slots=True)
class Params:
    """Parameters of one run, as the parent process sends them."""

    action: str
    address: str  # the DSN of Postgres; a Node driver of another server gets a port
    callers: int = 1
    batch: int = 1
    pool: int = 10
    concurrency: int = 0  # no limit
    prefetch: int = 0
    jobs: int = 0
    warmJobs: int = 0  # noqa: N815 - the Node drivers read the same names
    seconds: float = 0.0
    warm: float = 0.0
    home: str = ""


class Driver(Protocol):
    """What the driver of a peer implements."""

    async def open(self, params: Params) -> None: ...
    async def prepare(self) -> None: ...
    async def empty(self) -> None: ...
    async def send(self) -> None: ...
    async def send_many(self, count: int) -> None: ...
    async def work(self, handled: Callable[[], None]) -> None: ...
    async def left(self) -> int: ...


def run_driver(driver: Driver) -> None:
    uvloop.run(_run(driver, Params(**json.loads(sys.argv[1]))))


async def _run(driver: Driver, params: Params) -> None:
    await driver.open(params)
    match params.action:
        case "prepare":
            await driver.prepare()
        case "fill":
            await _fill(driver, params)
        case "enqueue":
            await _enqueue(driver, params)
        case "drain":
            await _drain(driver, params)


class Stopwatch:
    """Measures one span.

    The parent reads the CPU of server and database at the first line; the second line has that of
    this process.
    """

    def __init__(self) -> None:
        self._began, self._cpu = time.perf_counter(), time.process_time()
        _print_line({"begin": True})

    def stop(self, jobs: int) -> None:
        _print_line(
            {"jobs": jobs, "seconds": time.perf_counter() - self._began, "cpu": time.process_time() - self._cpu}
        )


async def _fill(driver: Driver, params: Params) -> None:
    await driver.empty()
    for sent in range(0, params.jobs, FILL_CALL):
        await driver.send_many(min(FILL_CALL, params.jobs - sent))
    await _expect(driver, params.jobs)


@dataclass(slots=True)
class Sending:
    """Counts what the callers of one run have sent, and says when they must stop."""

    sent: int = 0
    over: bool = False

    async def call(self, driver: Driver, batch: int) -> None:
        while not self.over:
            await (driver.send() if batch == 1 else driver.send_many(batch))
            self.sent += batch


async def _enqueue(driver: Driver, params: Params) -> None:
    await driver.empty()
    sending = Sending()
    async with asyncio.TaskGroup() as callers:  # a caller's error ends the run
        for _ in range(params.callers):
            callers.create_task(sending.call(driver, params.batch))
        await asyncio.sleep(params.warm)
        before, watch = sending.sent, Stopwatch()
        await asyncio.sleep(params.seconds)
        watch.stop(sending.sent - before)
        sending.over = True
    await _expect(driver, sending.sent)
    await driver.empty()


async def _expect(driver: Driver, count: int) -> None:
    stored = await driver.left()
    if stored != count:
        raise RuntimeError(f"{stored} jobs are stored, {count} were acknowledged")


@dataclass(slots=True)
class Draining:
    """Counts handled jobs; the stopwatch starts with the last job of the warm-up."""

    params: Params
    handled: int = 0
    watch: Stopwatch | None = None
    last: asyncio.Event = field(default_factory=asyncio.Event)

    def count(self) -> None:
        self.handled += 1
        if self.handled == self.params.warmJobs:
            self.watch = Stopwatch()
        if self.handled == self.params.jobs:
            self.last.set()


async def _drain(driver: Driver, params: Params) -> None:
    draining = Draining(params)
    working = asyncio.create_task(driver.work(draining.count))
    last = asyncio.create_task(draining.last.wait())
    await asyncio.wait((working, last), return_when=asyncio.FIRST_COMPLETED)
    if working.done():
        working.result()  # raises the error that ended the worker
    while draining.last.is_set() and await driver.left() > 0:  # noqa: ASYNC110 - only the peer's tables know
        await asyncio.sleep(SETTLED_POLL_SECONDS)
    if draining.watch is None or draining.handled != params.jobs:
        raise RuntimeError(f"{draining.handled} jobs were handled, {params.jobs} were stored")
    draining.watch.stop(params.jobs - params.warmJobs)
    working.cancel()


def _print_line(line: dict[str, float | bool]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
