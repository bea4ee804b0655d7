"""What may be done to a job from outside: change it, run it now, cancel it, cancel many."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

from app.db.infrastructure import Infrastructure
from app.db.lanes import by_lane, lane_of
from app.enqueue import defaults
from app.errors import NotFound, ValidationFailed, WrongState, refuse
from app.http.authorization import Access
from app.http.request_body import check_user_data
from app.http.schema_types import encoded, text_of, value_or
from app.jobs import store
from app.jobs.bulk_filter import bulk_filter
from app.jobs.listing import matching_ids
from app.jobs.reader import FINISHED, JobReader
from app.jobs.schemas import CancelAnswer, CancelJobs, Job, JobFilter, JobPatch
from app.jobs.signals import Move, Signals
from app.log import log
from app.queues.cache import QueueCache

SAMPLE = 20
CANCEL_TRIES = (
    3  # a job may begin or end its run between the two statements: neither matches, and it is looked at again
)


class JobUpdater:
    def __init__(self, infra: Infrastructure, queues: QueueCache, signals: Signals, reader: JobReader) -> None:
        self._infra = infra
        self._queues = queues
        self._signals = signals
        self._reader = reader

    async def patch(self, job_id: UUID, patch: JobPatch) -> Job:
        now = self._infra.now()
        check_user_data(patch.payload, self._infra.settings.max_payload_bytes, "/payload")
        run_at = value_or(patch.run_at, None)
        far = None if run_at is None else defaults.instant_fault(run_at, self._infra.settings, now, "/run_at")
        refuse([far, defaults.metadata_fault(patch.metadata, "")])
        values = (
            value_or(patch.priority, None),
            run_at,
            text_of(patch.payload),
            value_or(patch.max_attempts, None),
            encoded(patch.tags),
            encoded(patch.metadata),
        )
        lane = await self._known_lane(job_id)
        changed = await store.update_job(
            self._infra.db, job_id, now=now, values=values, held_groups=self._queues.held_groups(lane)
        )
        if changed is None:
            raise WrongState(job_id, (await self._reader.find(job_id)).state)
        self._signals.back(lane, job_id)  # another priority is another place
        if run_at is not None:
            self._signals.moved(lane, [Move(*changed, run_at)], since=job_id)
            self._signals.left(lane, [changed.group_key])
        return await self._reader.get(job_id)

    async def run_now(self, job_id: UUID) -> Job:
        """Scheduled becomes ready; what is ready already needs nothing done."""
        lane = await self._known_lane(job_id)
        hurried = await store.run_now(self._infra.db, job_id, self._infra.now(), self._queues.held_groups(lane))
        job = await self._reader.get(job_id)
        if hurried is None and job.state != "ready":
            raise WrongState(job_id, job.state)
        if hurried is not None:
            self._signals.moved(lane, [Move(*hurried)], since=job_id)
        return job

    async def _known_lane(self, job_id: UUID) -> int:
        """The lane of a job of any queue; of an id that was made up too, which then finds nothing."""
        lane = lane_of(job_id)
        if await self._queues.has_lane(lane):
            return lane
        raise NotFound(f"no job {job_id}")

    async def cancel(self, job_id: UUID, reason: str | None) -> tuple[int, Job]:
        """202 the first time a running job is asked to stop; 200 when it is cancelled, or had been asked before."""
        cancelled, params = await self._cancel([job_id])
        job = await self._reader.get(job_id)
        if cancelled or params:
            log.info("job cancelled", job_id=str(job_id), state=job.state, reason=reason)
            return (202 if params.get(job_id) is False else 200), job
        if job.state != "cancelled":
            raise WrongState(job_id, job.state)
        return 200, job

    async def cancel_many(self, request: CancelJobs, access: Access) -> CancelAnswer:
        ids = await self._matching(request, access)
        if value_or(request.dry_run, False):
            return CancelAnswer(matched=len(ids), cancelled=0, requested=0, sample=ids[:SAMPLE], dry_run=True)
        cancelled, params = await self._cancel(ids)
        log.info("jobs cancelled", count=len(cancelled), params=len(params), caller=access.caller)
        return CancelAnswer(matched=len(ids), cancelled=len(cancelled), requested=len(params), sample=ids[:SAMPLE])

    async def _matching(self, request: CancelJobs, access: Access) -> list[UUID]:
        chosen = bulk_filter(request.ids, request.filter, request.all, JobFilter())
        limit = value_or(request.limit, 1000)
        if chosen is None:
            ids = value_or(request.ids, [])
            reached = await self._queues.visible_to(ids, access)
            return (await self._living(job_id for job_id in ids if job_id in reached))[:limit]
        if value_or(chosen.state, None) in FINISHED:
            raise ValidationFailed.at("/filter/state", "finished jobs cannot be cancelled")
        lanes = await self._reader.lanes(chosen, access, "/filter")
        return await matching_ids(self._infra.reads, lanes, chosen, limit)

    async def _living(self, ids: Iterable[UUID]) -> list[UUID]:
        """Those that wait or run, each once and in the order of the request."""
        params = list(dict.fromkeys(ids))
        lanes = by_lane(params, lambda job_id: job_id)
        living = {job_id for lane, some in lanes.items() for job_id in await store.live_ids(self._infra.db, lane, some)}
        return [job_id for job_id in params if job_id in living]

    async def _cancel(self, ids: Iterable[UUID]) -> tuple[list[UUID], dict[UUID, bool]]:
        """Those that are cancelled now; and the running ones, with whether they had been asked before."""
        now = self._infra.now()
        cancelled: list[UUID] = []
        params: dict[UUID, bool] = {}
        left = list(ids)
        for _ in range(CANCEL_TRIES):
            for lane, some in by_lane(left, lambda job_id: job_id).items():
                cancelled += await self._cancel_waiting(lane, some, now)
                rest = sorted(set(some) - set(cancelled))
                if rest:
                    params |= {
                        row["id"]: row["again"] for row in await store.request_cancel(self._infra.db, lane, rest, now)
                    }
            left = await self._living(set(left) - params.keys() - set(cancelled))
            if not left:
                break
        self._signals.finished(cancelled)
        return cancelled, params

    async def _cancel_waiting(self, lane: int, ids: Sequence[UUID], now: datetime) -> list[UUID]:
        kept = self._queues.retention(lane, now)
        rows = await store.cancel_waiting(self._infra.db, lane, ids, now=now, kept=kept, reason="cancelled_by_user")
        self._signals.left(lane, {row.group_key for row in rows})
        if any(row.awaited for row in rows):
            self._signals.ended()
        return [row.id for row in rows]
