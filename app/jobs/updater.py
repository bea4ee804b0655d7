"""Updates a job, runs it now, and cancels one or many jobs."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

from app.db.infrastructure import Infrastructure
from app.db.lanes import batches_by_lane, group_by_lane, lane_of
from app.errors import Fault, NotFound, WrongState, raise_for_faults
from app.events import FINISHED, EventBus
from app.http.authorization import Access
from app.http.bodies import user_data_fault
from app.http.schema_types import raw_to_text, to_json_text, value_or
from app.jobs import store
from app.jobs.bulk_filter import bulk_filter
from app.jobs.listing import matching_ids
from app.jobs.reader import JobReader
from app.jobs.rows import JobChanges
from app.jobs.schemas import MAX_CANCELLED, CancelAnswer, CancelJobs, Job, JobFilter, JobPatch
from app.jobs.validation import instant_fault, metadata_fault
from app.log import log
from app.queues.cache import QueueCache

# Matching jobs that a bulk cancellation counts: one more than it can cancel, so that it knows
# whether jobs remain.
MAX_COUNTED = MAX_CANCELLED + 1
MAX_SAMPLE = 20  # ids in the response of a bulk cancellation
# How often both statements of a cancellation are tried. A job may start or finish its run between
# the two statements, and then neither of them matches the job.
CANCEL_TRIES = 3
BATCH_SIZE = 500  # jobs per statement: more would block the event loop for several milliseconds


class JobUpdater:
    def __init__(self, *, infra: Infrastructure, queues: QueueCache, events: EventBus, reader: JobReader) -> None:
        self._infra = infra
        self._queues = queues
        self._events = events
        self._reader = reader

    async def get_waiting(self, job_id: UUID) -> Job:
        """Returns a job that can be updated.

        Raises WrongState for a running or finished job, which cannot be updated.
        """
        job = await self._reader.get(job_id)
        if job.state == "running" or job.state in FINISHED:
            raise WrongState(job_id, job.state)
        return job

    async def patch(self, job_id: UUID, patch: JobPatch, faults: Sequence[Fault] = ()) -> Job:
        """Updates a job and returns it. Raises ValidationFailed for an invalid patch.

        The error lists `faults`, which the route has found, and the faults that this method finds.
        """
        now = self._infra.now()
        settings, run_at = self._infra.settings, value_or(patch.run_at, None)
        raise_for_faults(
            [
                *faults,
                None if run_at is None else instant_fault(run_at, settings, now, "/run_at"),
                user_data_fault(patch.payload, settings.max_payload_bytes, "/payload"),
                metadata_fault(patch.metadata, ""),
            ]
        )
        changes = JobChanges(
            priority=value_or(patch.priority, None),
            run_at=run_at,
            payload=raw_to_text(patch.payload),
            max_attempts=value_or(patch.max_attempts, None),
            tags=to_json_text(patch.tags),
            metadata=to_json_text(patch.metadata),
        )
        lane = await self._existing_lane(job_id)
        updated = await store.update_job(
            self._infra.db, job_id, changes, now=now, held_groups=self._queues.held_groups(lane)
        )
        if updated is None:
            raise WrongState(job_id, (await self._reader.find(job_id)).state)
        self._events.publish_moved(lane, [updated])
        return await self._reader.get(job_id)

    async def run_now(self, job_id: UUID) -> Job:
        """Makes a scheduled job ready. Does nothing if the job is ready already."""
        lane = await self._existing_lane(job_id)
        updated = await store.run_now(self._infra.db, job_id, self._infra.now(), self._queues.held_groups(lane))
        job = await self._reader.get(job_id)
        if updated is None and job.state != "ready":
            raise WrongState(job_id, job.state)
        if updated is not None:
            self._events.publish_moved(lane, [updated])
        return job

    async def _existing_lane(self, job_id: UUID) -> int:
        """Returns the lane that the job id contains, even if there is no such job.

        Raises NotFound if no queue has the lane.
        """
        lane = lane_of(job_id)
        if await self._queues.has_lane(lane):
            return lane
        raise NotFound(f"no job {job_id}")

    async def cancel(self, job_id: UUID, reason: str | None, caller: str) -> tuple[int, Job]:
        """Cancels a waiting job, or asks the worker of a running job to stop.

        Returns the HTTP status and the job. The status is 202 if a running job is asked to stop for
        the first time.
        """
        cancelled, requested = await self._cancel([job_id])
        job = await self._reader.get(job_id)
        if cancelled or requested:
            event = "job cancelled" if cancelled else "job cancellation requested"
            log.info(event, job_id=str(job_id), state=job.state, reason=reason, caller=caller)
            return (202 if requested.get(job_id) is False else 200), job
        if job.state != "cancelled":
            raise WrongState(job_id, job.state)
        return 200, job

    async def cancel_many(self, request: CancelJobs, access: Access) -> CancelAnswer:
        matching = await self._matching(request, access)
        matched, ids = len(matching), matching[: value_or(request.limit, 1000)]
        sample = ids[:MAX_SAMPLE]
        if value_or(request.dry_run, False):
            return CancelAnswer(
                matched=matched, cancelled=0, requested=0, remaining=matched, sample=sample, dry_run=True
            )
        cancelled, requested = await self._cancel(ids)
        log.info("jobs cancelled", count=len(cancelled), requested=len(requested), caller=access.caller)
        return CancelAnswer(
            matched=matched,
            cancelled=len(cancelled),
            requested=len(requested),
            remaining=matched - len(ids),
            sample=sample,
        )

    async def _matching(self, request: CancelJobs, access: Access) -> list[UUID]:
        """Returns the ids of the live jobs that the request selects, at most MAX_COUNTED ids."""
        job_filter = bulk_filter(request, request.filter, JobFilter())
        if job_filter is None:
            ids = value_or(request.ids, [])
            visible = await self._queues.accessible_ids(ids, access)
            return await self._live(job_id for job_id in ids if job_id in visible)
        lanes = await self._reader.lanes(job_filter, access, "/filter")
        return await matching_ids(self._infra.read_connections, lanes, job_filter, MAX_COUNTED)

    async def _live(self, ids: Iterable[UUID]) -> list[UUID]:
        """Returns the ids of the jobs that wait or run, each id once, in the order of `ids`."""
        unique_ids = list(dict.fromkeys(ids))
        live: set[UUID] = set()
        for lane, lane_ids in group_by_lane(unique_ids, lambda job_id: job_id).items():
            live |= await store.live_ids(self._infra.db, lane, lane_ids)
        return [job_id for job_id in unique_ids if job_id in live]

    async def _cancel(self, ids: Iterable[UUID]) -> tuple[list[UUID], dict[UUID, bool]]:
        """Cancels the waiting jobs, and asks the workers of the running ones to stop.

        Returns the ids of the cancelled jobs, and a map with the ids of the running jobs. The
        values of the map say whether the worker had already been asked before this call.
        """
        now = self._infra.now()
        cancelled: list[UUID] = []
        requested: dict[UUID, bool] = {}
        async for lane, batch in batches_by_lane(ids, BATCH_SIZE):
            for _ in range(CANCEL_TRIES):
                done = await self._cancel_waiting(lane, batch, now)
                cancelled += done
                batch = sorted(set(batch) - set(done))
                if not batch:
                    break
                rows = await store.request_cancel(self._infra.db, lane, batch, now)
                requested |= {row["id"]: row["was_requested"] for row in rows}
                batch = await self._live(set(batch) - requested.keys())
        return cancelled, requested

    async def _cancel_waiting(self, lane: int, ids: Sequence[UUID], now: datetime) -> list[UUID]:
        kept = self._queues.retention(lane, now)
        rows = await store.cancel_waiting(self._infra.db, lane, ids, now=now, kept=kept, reason="cancelled_by_user")
        self._events.publish_moved(lane, rows)
        return [row.id for row in rows]
