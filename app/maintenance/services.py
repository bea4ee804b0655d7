"""Runs periodic services.

Each runs in a named task, at an interval or when woken, until the process ends.

A service that is `leader_only` runs in one broker at a time. Leadership is a lease, a row in
`leaders`:

    follower -> leader     no broker holds the lease, or its holder has not renewed it in time
    leader -> leader       renewed when half of the lease is over
    leader -> follower     the broker stops (`step_down`), or the lease expires
"""

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

STOP_SECONDS = 5.0  # a task that ignores its cancellation must not keep the process alive
LEAD_SECONDS = 10.0  # a leader that dies is replaced after this; leader-only services can wait that long

_rng = random.Random()  # not the module's: property tests seed that one and notice other users


@dataclass(frozen=True, slots=True)
class PeriodicService:
    """What runs every `seconds`. A `leader_only` service runs in one broker at a time."""

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

    def add(self, service: PeriodicService) -> Callable[[], None]:
        """Starts the service. Returns its wake function: calling it makes the service run now."""
        woken = asyncio.Event()
        self._tasks.append(asyncio.create_task(self._run(service, woken), name=f"service {service.name}"))
        return woken.set

    def start_task(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Starts a task that has a loop of its own."""
        self._tasks.append(asyncio.ensure_future(run()))
        self._tasks[-1].set_name(name)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        _, running = await asyncio.wait(self._tasks, timeout=STOP_SECONDS) if self._tasks else (set(), set())
        if running:
            log.warning("tasks did not end", tasks=sorted(task.get_name() for task in running))
        with contextlib.suppress(DatabaseUnavailable, TimeoutError):
            async with asyncio.timeout(1):  # the lease expires on its own
                await store.step_down(self._infra.db, self._holder)

    async def _run(self, service: PeriodicService, woken: asyncio.Event) -> None:
        while True:
            woken.clear()
            await self._run_once(service)
            if not woken.is_set():
                timer = asyncio.get_running_loop().call_later(service.seconds * _rng.uniform(0.9, 1.1), woken.set)
                try:
                    await woken.wait()  # asyncio.timeout() would cost more than most services
                finally:
                    timer.cancel()

    async def _run_once(self, service: PeriodicService) -> None:
        """Logs and counts a failure; the service runs again.

        No failure ends a service, its own or another.
        """
        reset_written()
        try:
            if not service.leader_only or await self._leads(service):
                await service.run_once()
        except DatabaseUnavailable as error:
            self._infra.metrics.service_failures.labels(service.name).inc()
            log.debug("service could not run", service=service.name, error=error.detail)
        except Exception:
            self._infra.metrics.service_failures.labels(service.name).inc()
            log.exception("service failed", service=service.name)

    async def _leads(self, service: PeriodicService) -> bool:
        """Returns whether this broker leads. Renews the lease when half of it is over.

        Renews earlier if the lease would not last until the next run.
        """
        seconds = max(LEAD_SECONDS, 2 * service.seconds)
        now = time.monotonic()
        if now < self._leads_until.get(service.name, 0.0):
            return True
        leads = await store.lead(self._infra.db, service.name, self._holder, seconds)
        if leads:
            self._leads_until[service.name] = now + seconds - max(seconds / 2, 1.1 * service.seconds)
        return leads
