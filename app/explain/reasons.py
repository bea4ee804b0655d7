"""Lists every reason why a job is not running, with the times, limits and jobs that cause it."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from uuid import UUID

from app.concurrency import store as concurrency
from app.concurrency.queue_limits import QueueLimits
from app.db.infrastructure import Infrastructure
from app.events import FINISHED
from app.explain import store
from app.explain.schemas import Explanation, Reason
from app.explain.store import MAX_COUNTED, WaitingJobRow
from app.http.schema_types import UNSET, unset_if_none
from app.jobs.reader import JobReader
from app.jobs.rows import JobRow, public_state
from app.matching.pollers import PollerRegistry
from app.queues.cache import Queue, QueueCache
from app.workers import store as workers
from app.workers.registry import PollHistory

POLLED_WITHIN = timedelta(minutes=5)


class JobExplainer:
    def __init__(
        self,
        *,
        infra: Infrastructure,
        queues: QueueCache,
        reader: JobReader,
        poll_history: PollHistory,
        pollers: PollerRegistry,
    ) -> None:
        self._infra = infra
        self._queues = queues
        self._reader = reader
        self._poll_history = poll_history
        self._pollers = pollers
        self._limits = QueueLimits(infra=infra)

    async def explain(self, job_id: UUID) -> Explanation:
        await self._infra.config_versions.ensure_fresh()
        await self._poll_history.write()
        row = await self._reader.find(job_id)
        await self._queues.load_lanes([row.lane])
        reasons = (
            _reasons_of_state(row)
            if row.state in (*FINISHED, "running")
            else [reason async for reason in self._reasons_or_claimable(row)]
        )
        return Explanation(state=public_state(row.state), reasons=reasons)

    async def _reasons_or_claimable(self, row: JobRow) -> AsyncIterator[Reason]:
        queue = self._queues.by_lane(row.lane)
        waiting = await store.waiting_job(self._infra.read_connections, row.id)
        reasons = [reason async for reason in self._reasons(row, queue, waiting)] if waiting is not None else []
        for reason in reasons or [Reason(code="claimable", detail="the next worker that polls for it gets it")]:
            yield reason

    async def _reasons(self, row: JobRow, queue: Queue, waiting: WaitingJobRow) -> AsyncIterator[Reason]:
        if row.state == "blocked":
            detail = f"waits for {_count(len(waiting.waiting_for or []), 'job')}"
            yield Reason(code="waiting_for_jobs", detail=detail, job_ids=unset_if_none(waiting.waiting_for))
        if row.state == "scheduled":
            yield Reason(
                code="not_due",
                detail=f"not before {_format_time(row.run_at)}",
                until=row.run_at,
                reason=unset_if_none(row.state_reason),
            )
        if queue.paused:
            paused_reason = queue.row.paused_reason
            yield Reason(
                code="queue_paused",
                detail=f"{queue.name} is paused" + (f": {paused_reason}" if paused_reason else ""),
                since=unset_if_none(queue.row.paused_at),
                reason=unset_if_none(paused_reason),
            )
        if row.state in ("ready", "pending"):
            async for reason in self._reasons_of_group(row, queue, waiting):
                yield reason
            async for reason in self._reasons_of_queue(row, queue, waiting):
                yield reason
        last_polled = await workers.last_polled(self._infra.read_connections, queue.name, row.job_type)
        if self._pollers.has_poller_for(queue.name, row.job_type):
            return
        if last_polled is None or last_polled < self._infra.now() - POLLED_WITHIN:
            minutes = POLLED_WITHIN // timedelta(minutes=1)
            detail = f"no worker has polled {queue.name} for {row.job_type} within the last {minutes} minutes"
            yield Reason(code="no_worker", detail=detail, since=unset_if_none(last_polled))

    async def _reasons_of_group(self, row: JobRow, queue: Queue, waiting: WaitingJobRow) -> AsyncIterator[Reason]:
        group = row.group_key or ""
        cooldown = (await concurrency.cooldowns_of(self._infra.read_connections, row.lane, [group])).get(group)
        if cooldown is not None and waiting.admission is None:
            detail = f"group {group} is cooling down until {_format_time(cooldown.until)}; then one job is tried first"
            probe = UNSET if cooldown.probe_job_id is None else [cooldown.probe_job_id]
            yield Reason(code="group_at_rest", detail=detail, until=cooldown.until, group=group, job_ids=probe)
        if row.state != "pending" or cooldown is not None:
            return
        ahead = await store.ahead_in_group(self._infra.read_connections, row.id, group)
        admitted = await store.admitted_of_group(self._infra.read_connections, row.lane, group)
        if row.id in admitted:
            return  # the job has been admitted since its row was read
        limit = queue.max_running_per_group
        if limit is not None and len(admitted) >= min(limit, store.MAX_LISTED):
            detail = f"group {group} has reached its limit of {_count(limit, 'job')}; ahead of it in the group: {ahead}"
            yield Reason(code="group_at_limit", detail=detail, limit=limit, job_ids=admitted, ahead=ahead, group=group)
        else:
            yield Reason(
                code="waits_for_turn",
                detail=f"waits to be admitted after {_count(ahead, 'other job')} of its group",
                ahead=ahead,
            )

    async def _reasons_of_queue(self, row: JobRow, queue: Queue, waiting: WaitingJobRow) -> AsyncIterator[Reason]:
        if queue.max_running is not None:
            running = await concurrency.count_slots(self._infra.read_connections, row.lane)
            if running >= queue.max_running:
                detail = f"{_count(running, 'job')} of {queue.name} running, the limit is {queue.max_running}"
                yield Reason(code="queue_at_limit", detail=detail, running=running, limit=queue.max_running)
        if queue.rate is not None:
            allowance = await self._limits.rate_allowance(self._infra.read_connections, queue, row.lane, 1)
            if allowance.limit == 0 and allowance.retry_at is not None:
                detail = f"the rate limit of {queue.name} allows the next job at {_format_time(allowance.retry_at)}"
                yield Reason(code="rate_limited", detail=detail, until=allowance.retry_at, limit=queue.rate.limit)
        ahead = await self._count_ahead(row, queue, waiting) if row.state == "ready" else 0
        if ahead:
            at_least = "at least " if ahead == MAX_COUNTED else ""
            detail = f"{at_least}{_count(ahead, 'job')} will be delivered before it"
            yield Reason(code="jobs_ahead", detail=detail, ahead=ahead)

    async def _count_ahead(self, row: JobRow, queue: Queue, waiting: WaitingJobRow) -> int:
        if queue.fair and waiting.admission is not None:
            return await store.ahead_admitted(self._infra.read_connections, row.id, waiting.priority, waiting.admission)
        return await store.ahead_in_queue(self._infra.read_connections, row.id, waiting.priority)


def _reasons_of_state(row: JobRow) -> list[Reason]:
    """Returns the reasons for a job that is running or has finished.

    The first reason is the state of the job. A running job whose cancellation was requested has a
    second reason.
    """
    if row.state == "running":
        detail = "it is running" + (f" on worker {row.worker_id}" if row.worker_id else "")
        since, worker_id = unset_if_none(row.started_at), unset_if_none(row.worker_id)
        running = Reason(code="running", detail=detail, since=since, worker_id=worker_id)
        return [running] if row.cancel_requested_at is None else [running, _cancel_requested(row.cancel_requested_at)]
    detail = f"it is {row.state}" + (f": {_explain_state_reason(row)}" if row.state_reason else "")
    finished_at, state_reason = unset_if_none(row.finished_at), unset_if_none(row.state_reason)
    return [Reason(code=row.state, detail=detail, since=finished_at, reason=state_reason)]


def _cancel_requested(since: datetime) -> Reason:
    detail = "a caller has cancelled it: its worker learns of that by its next heartbeat, and may still complete it"
    return Reason(code="cancel_requested", detail=detail, since=since)


def _explain_state_reason(row: JobRow) -> str:
    """Returns the `state_reason` of the job, with an explanation."""
    meanings = {
        "attempts_exhausted": f"it has used all of its attempts ({row.max_attempts})",
        "not_retryable": "its worker reported that a retry is of no use",
        "poison": f"its lease expired {_count(row.crashes, 'time')}",
        "expired": "no worker started it before its expires_at",
        "undeliverable": f"it was delivered {_count(row.deliveries, 'time')} and did not finish",
        "dependency_failed": "a job that it depends on did not complete",
        "cancelled_by_user": "a caller cancelled it",
    }
    meaning = meanings.get(row.state_reason or "")
    return f"{row.state_reason}, {meaning}" if meaning else f"{row.state_reason}"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _format_time(instant: datetime) -> str:
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")
