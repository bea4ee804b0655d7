"""When chores run: each in a named task of its own, every so often or when nudged, until the process ends."""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from uuid import uuid4

from app.db.infrastructure import Infrastructure
from app.db.write_outcome import reset_written
from app.errors import DatabaseUnavailable
from app.log import log
from app.maintenance import store

STOP_SECONDS = 5.0  # what does not end when it is cancelled must not keep the process
LEAD_SECONDS = 10.0  # a leader that dies is followed after this; what it leads can wait that long

_rng = random.Random()  # of its own: tests that draw lots notice who else throws the module's


@dataclass(frozen=True, slots=True)
class PeriodicService:
    """`led` chores run in one process at a time."""

    name: str
    run_once: Callable[[], Awaitable[None]]
    seconds: float
    leader_only: bool = False


class ServiceRunner:
    def __init__(self, infra: Infrastructure) -> None:
        self._infra = infra
        self._holder = uuid4()
        self._tasks: list[asyncio.Task[None]] = []
        self._leads_until: dict[str, float] = {}

    def start(self, service_: PeriodicService) -> Callable[[], None]:
        """Returns the nudge: calling it makes the chore run now."""
        woken = asyncio.Event()
        self._tasks.append(asyncio.create_task(self._run(service_, woken), name=f"chore {service_.name}"))
        return woken.set

    def start_task(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """For what is a loop by itself."""
        self._tasks.append(asyncio.ensure_future(run()))
        self._tasks[-1].set_name(name)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        _, running = await asyncio.wait(self._tasks, timeout=STOP_SECONDS) if self._tasks else (set(), set())
        if running:
            log.warning("tasks did not end", tasks=sorted(task.get_name() for task in running))
        with contextlib.suppress(DatabaseUnavailable, TimeoutError):
            async with asyncio.timeout(1):  # the lease runs out by itself
                await store.step_down(self._infra.db, self._holder)

    async def _run(self, service_: PeriodicService, woken: asyncio.Event) -> None:
        while True:
            woken.clear()
            await self._run_once(service_)
            if not woken.is_set():
                alarm = asyncio.get_running_loop().call_later(service_.seconds * _rng.uniform(0.9, 1.1), woken.set)
                try:
                    await woken.wait()  # a timeout would cost more than most chores
                finally:
                    alarm.cancel()

    async def _run_once(self, service_: PeriodicService) -> None:
        """A chore that fails is logged, counted and run again: none may end another, or itself."""
        reset_written()
        try:
            if not service_.leader_only or await self._leads(service_):
                await service_.run_once()
        except DatabaseUnavailable as error:
            self._infra.metrics.chore_failures.labels(service_.name).inc()
            log.debug("chore could not run", service=service_.name, error=error.detail)
        except Exception:
            self._infra.metrics.chore_failures.labels(service_.name).inc()
            log.exception("chore failed", service=service_.name)

    async def _leads(self, service_: PeriodicService) -> bool:
        """A lease is renewed when half of it is over, or when it would not last until the next time."""
        seconds = max(LEAD_SECONDS, 2 * service_.seconds)
        now = time.monotonic()
        if now < self._leads_until.get(service_.name, 0.0):
            return True
        leads = await store.lead(self._infra.db, service_.name, self._holder, seconds)
        if leads:
            self._leads_until[service_.name] = now + seconds - max(seconds / 2, 1.1 * service_.seconds)
        return leads
