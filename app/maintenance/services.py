"""Runs each background service in a task, at an interval and when the service is woken.

A service that is `leader_only` runs in one broker at a time. Leadership is a lease, a row in
`leaders`:

    follower -> leader     no broker holds the lease, or its holder has not renewed it in time
    leader -> leader       renewed when half of the lease is over
    leader -> follower     the broker stops (`step_down`), or the lease expires
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

from app.db.infrastructure import Infrastructure
from app.db.write_outcome import reset_written
from app.errors import DatabaseUnavailable
from app.log import log
from app.maintenance import store
from app.periodic_service import PeriodicService
from app.rng import rng

STOP_SECONDS = 5.0  # a task that ignores its cancellation must not keep the process alive
LEAD_SECONDS = 10.0  # a dead leader is replaced after this time; leader-only services can wait that long


@dataclass(frozen=True, slots=True)
class BackgroundService:
    """A service that runs every `seconds`. If it is `leader_only`, only the leader runs it."""

    name: str
    service: PeriodicService
    seconds: float
    leader_only: bool = False


class ServiceRunner:
    def __init__(self, *, infra: Infrastructure) -> None:
        self._infra = infra
        self._holder = uuid4()
        self._tasks: list[asyncio.Task[None]] = []
        self._leads_until: dict[str, float] = {}

    def add(self, background: BackgroundService) -> None:
        """Starts a task that runs the service until `stop`."""
        self._tasks.append(asyncio.create_task(self._run(background), name=f"service {background.name}"))

    def start_task(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Starts a task that calls `run` once. `run` contains a loop of its own."""
        self._tasks.append(asyncio.ensure_future(run()))
        self._tasks[-1].set_name(name)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        _, running = await asyncio.wait(self._tasks, timeout=STOP_SECONDS) if self._tasks else (set(), set())
        if running:
            log.warning("tasks did not end", tasks=sorted(task.get_name() for task in running))
        with contextlib.suppress(DatabaseUnavailable, TimeoutError):
            async with asyncio.timeout(1):  # without `step_down`, the lease expires later
                await store.step_down(self._infra.db, self._holder)

    async def _run(self, background: BackgroundService) -> None:
        while True:
            await self._run_once(background)
            await background.service.wait(background.seconds * rng.uniform(0.9, 1.1))

    async def _run_once(self, background: BackgroundService) -> None:
        """Runs the service once. Skips a leader-only service if another broker is its leader.

        A failure is logged and counted, and does not end the task.
        """
        reset_written()
        try:
            if not background.leader_only or await self._leads(background):
                await background.service.run_once()
        except DatabaseUnavailable as error:
            self._infra.metrics.service_failures.labels(background.name).inc()
            log.debug("service could not run", service=background.name, error=error.detail)
        except Exception:
            self._infra.metrics.service_failures.labels(background.name).inc()
            log.exception("service failed", service=background.name)

    async def _leads(self, background: BackgroundService) -> bool:
        """Returns whether this broker is the leader for the service.

        Acquires the lease of the leader if it is free. Renews it when half of it is over, or
        earlier if the lease would not last until the next run.
        """
        seconds = max(LEAD_SECONDS, 2 * background.seconds)
        now = time.monotonic()
        if now < self._leads_until.get(background.name, 0.0):
            return True
        leads = await self._acquire_lease(background.name, seconds)
        if leads:
            self._leads_until[background.name] = now + seconds - max(seconds / 2, 1.1 * background.seconds)
        return leads

    async def _acquire_lease(self, service: str, seconds: float) -> bool:
        now = self._infra.now()
        until = now + timedelta(seconds=seconds)
        return await store.lead(self._infra.db, service, self._holder, now=now, until=until)
