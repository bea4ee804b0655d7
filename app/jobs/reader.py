"""Reads a job, its attempts, a page of jobs, or a job as soon as it has finished.

A request that waits for a job to finish returns

- immediately, by an event, if this process finishes the job;
- within about 0.5 s, by polling, if another process finishes the job;
- unfinished, if the wait is over, the client has disconnected, or the process drains.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from app.db.infrastructure import Infrastructure
from app.db.lanes import lanes_of
from app.errors import NotFound, ValidationFailed
from app.events import FINISHED, EventBus, JobsMoved
from app.http import instants
from app.http.authorization import Access
from app.http.pagination import EncodedPage, PageParams, encode_page
from app.http.schema_types import value_or
from app.jobs import store
from app.jobs.listing import JobPage, list_jobs
from app.jobs.rows import JobRow
from app.jobs.schemas import Attempt, Job, JobFilter, Order
from app.queues.cache import QueueCache
from app.rng import rng
from app.server.exchange import Client

_FAR_AHEAD = instants.LAST
CHECK_SECONDS = 0.5  # polling interval, for jobs that another process finishes


class JobReader:
    def __init__(self, *, infra: Infrastructure, queues: QueueCache, events: EventBus) -> None:
        self._infra = infra
        self._queues = queues
        self._waiters: dict[UUID, list[asyncio.Event]] = {}
        self._draining = False
        events.subscribe_moved(FINISHED, self._on_finished)

    async def find(self, job_id: UUID) -> JobRow:
        row = await store.find(self._infra.db, job_id, self._infra.retention_now())
        if row is None:
            raise NotFound(f"no job {job_id}")
        return row

    async def to_response(self, row: JobRow) -> Job:
        return row.to_response(await self._queues.find_name(row.lane))

    async def get(self, job_id: UUID) -> Job:
        return await self.to_response(await self.find(job_id))

    async def attempts(self, job_id: UUID, page: PageParams) -> EncodedPage[Attempt]:
        after = _parse_instant(page.after("ended_at"))
        attempts = (await self.find(job_id)).all_attempts()
        return await encode_page(
            attempts if after is None else _attempts_after(attempts, after),
            lambda attempt: attempt,
            lambda attempt: {"ended_at": value_or(attempt.ended_at, _FAR_AHEAD).isoformat()},
            limit=page.limit,
            max_bytes=self._infra.settings.max_list_bytes,
        )

    async def get_finished(self, job_id: UUID, wait_seconds: float, client: Client, access: Access) -> Job:
        """Waits until the job has finished, and returns the job.

        Returns the unfinished job if the wait is over, the client has disconnected or the process
        drains.
        """
        until = time.monotonic() + min(wait_seconds, self._infra.settings.max_wait_seconds)
        event = asyncio.Event()
        client.disconnected.add_done_callback(lambda _: event.set())
        self._waiters.setdefault(job_id, []).append(event)
        try:
            while True:
                event.clear()
                row = await self.find(job_id)
                await self._infra.config_versions.ensure_fresh()
                # Checked after the read, because a caller whose key was revoked before the job
                # finished must not receive the result.
                access.check_key_active()
                seconds_left = until - time.monotonic()
                if row.state in FINISHED or seconds_left <= 0 or client.is_disconnected or self._draining:
                    return await self.to_response(row)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(seconds_left, CHECK_SECONDS * rng.uniform(0.8, 1.2))):
                        await event.wait()
        finally:
            self._remove_waiter(job_id, event)

    async def page(
        self, job_filter: JobFilter, order: Order, page: PageParams, access: Access, *, payload: bool
    ) -> EncodedPage[Job]:
        lanes, max_bytes = await self.lanes(job_filter, access), self._infra.settings.max_list_bytes
        rows, total = await list_jobs(
            self._infra.read_connections,
            lanes,
            job_filter,
            retention_now=self._infra.retention_now(),
            after=_parse_id(page.after("id")),
            order=order,
            limit=page.limit + 1,
            max_bytes=max_bytes,
            payload=payload,
        )
        await self._queues.load_lanes({row["lane"] for row in rows})
        return await encode_page(
            rows,
            lambda row: JobPage.job(row).to_response(self._queues.name_by_lane(row["lane"])),
            lambda job: {"id": str(job.id)},
            limit=page.limit,
            max_bytes=max_bytes,
            total=total,
        )

    async def lanes(self, job_filter: JobFilter, access: Access, pointer: str = "/query") -> Sequence[int]:
        name = value_or(job_filter.queue, None)
        if name is None:
            await self._queues.load_all()
            return await self._queues.all_lanes(access)
        access.check(name, f"{pointer}/queue")
        queue = await self._queues.find(name)
        return lanes_of(queue.id, queue.lanes) if queue else []

    def drain(self) -> None:
        self._draining = True
        for events in self._waiters.values():
            for event in events:
                event.set()

    def _on_finished(self, event: JobsMoved) -> None:
        for job in event.jobs if self._waiters else ():
            for waiter in self._waiters.get(job.id, ()):
                waiter.set()

    def _remove_waiter(self, job_id: UUID, event: asyncio.Event) -> None:
        events = self._waiters[job_id]
        events.remove(event)
        if not events:
            del self._waiters[job_id]


def _attempts_after(attempts: list[Attempt], instant: datetime) -> list[Attempt]:
    """Returns the attempts that follow the attempt that ended at `instant`.

    Finds these attempts by their position in the list. Their times need not ascend, because a clock
    can be set back. If the attempt that ended at `instant` is no longer stored, returns the
    attempts that ended later. Only the last attempt can have no `ended_at`, because it is still
    running.
    """
    ends = [value_or(attempt.ended_at, _FAR_AHEAD) for attempt in attempts]
    if instant in ends:
        return attempts[ends.index(instant) + 1 :]
    return [attempt for attempt, end in zip(attempts, ends, strict=True) if end > instant]


def _parse_instant(text: str) -> datetime | None:
    try:
        return instants.parse(text) if text else None
    except ValueError:
        raise ValidationFailed.at("/query/cursor", "cursor must be the next_cursor of an earlier page") from None


def _parse_id(text: str) -> UUID | None:
    try:
        return UUID(text) if text else None
    except ValueError:
        raise ValidationFailed.at("/query/cursor", "cursor must be the next_cursor of an earlier page") from None
