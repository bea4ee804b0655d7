"""Names every reason why a job is not running, with its facts."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from uuid import UUID

from app.concurrency import store as limits
from app.concurrency.queue_limits import QueueLimits
from app.db.infrastructure import Infrastructure
from app.explain import store
from app.explain.schemas import Explanation, Reason
from app.explain.store import MAX_COUNTED, WaitingFacts
from app.http.schema_types import UNSET, unset_if_none
from app.jobs.reader import FINISHED, JobReader
from app.jobs.store import JobRow, public_state
from app.matching.pollers import PollerRegistry
from app.queues.cache import Queue, QueueCache
from app.workers import store as workers
from app.workers.poll_history import PollHistory

POLLED_WITHIN = timedelta(minutes=5)


class JobExplainer:
    def __init__(
        self,
        infra: Infrastructure,
        queues: QueueCache,
        reader: JobReader,
        poll_history: PollHistory,
        waiting: PollerRegistry,
    ) -> None:
        self._infra = infra
        self._queues = queues
        self._reader = reader
        self._poll_history = poll_history
        self._waiting = waiting
        self._gate = QueueLimits(infra)

    async def explain(self, job_id: UUID) -> Explanation:
        await self._infra.versions.ensure_fresh()
        await self._poll_history.write()
        row = await self._reader.find(job_id)
        await self._queues.load([row.lane])
        reasons = (
            [_plain(row)]
            if row.state in (*FINISHED, "running")
            else [reason async for reason in self._held_back_by(row)]
        )
        return Explanation(state=public_state(row.state), reasons=reasons)

    async def _held_back_by(self, row: JobRow) -> AsyncIterator[Reason]:
        queue = self._queues.by_lane(row.lane)
        facts = await store.waiting_facts(self._infra.reads, row.id)
        found = [reason async for reason in self._reasons(row, queue, facts)] if facts is not None else []
        for reason in found or [Reason(code="claimable", detail="the next worker that asks gets it")]:
            yield reason

    async def _reasons(self, row: JobRow, queue: Queue, facts: WaitingFacts) -> AsyncIterator[Reason]:
        if row.state == "blocked":
            detail = f"waits for {_counted(len(facts.awaits or []), 'job')}"
            yield Reason(code="waiting_for_jobs", detail=detail, job_ids=unset_if_none(facts.awaits))
        if row.state == "scheduled":
            yield Reason(
                code="not_due",
                detail=f"not before {_told(row.run_at)}",
                until=row.run_at,
                reason=unset_if_none(row.state_reason),
            )
        if queue.paused:
            why = queue.row.paused_reason
            detail = f"{queue.name} is paused" + (f": {why}" if why else "")
            yield Reason(
                code="queue_paused", detail=detail, since=unset_if_none(queue.row.paused_at), reason=unset_if_none(why)
            )
        if row.state in ("ready", "parked"):
            async for reason in self._of_group(row, queue, facts):
                yield reason
            async for reason in self._of_queue(row, queue, facts):
                yield reason
        last = await workers.last_polled(self._infra.reads, queue.name, row.job_type)
        if self._waiting.has_poller_for(queue.name, row.job_type):
            return
        if last is None or last < self._infra.now() - POLLED_WITHIN:
            detail = f"no worker has asked for {queue.name} and {row.job_type} within {POLLED_WITHIN // timedelta(minutes=1)} minutes"
            yield Reason(code="no_worker", detail=detail, since=unset_if_none(last))

    async def _of_group(self, row: JobRow, queue: Queue, facts: WaitingFacts) -> AsyncIterator[Reason]:
        group = row.group_key or ""
        rest = (await limits.cooldowns_of(self._infra.reads, row.lane, [group])).get(group)
        if rest is not None and facts.turn is None:
            detail = f"group {group} is at rest until {_told(rest.until)}; then one job goes first"
            probe = UNSET if rest.probe is None else [rest.probe]
            yield Reason(code="group_at_rest", detail=detail, until=rest.until, group=group, job_ids=probe)
        if row.state != "parked" or rest is not None:
            return
        ahead = await store.ahead_in_group(self._infra.reads, row.id, group)
        holders = await store.admitted_of_group(self._infra.reads, row.lane, group)
        if row.id in holders:
            return  # its turn has come since we looked
        if queue.per_group is not None and len(holders) >= min(queue.per_group, 20):
            detail = f"{queue.per_group} of group {group} may run at once, and as many have their turn; {ahead} wait before it"
            yield Reason(
                code="group_at_limit", detail=detail, limit=queue.per_group, job_ids=holders, ahead=ahead, group=group
            )
        else:
            yield Reason(
                code="waits_for_turn",
                detail=f"its turn comes after {_counted(ahead, 'other')} of its group",
                ahead=ahead,
            )

    async def _of_queue(self, row: JobRow, queue: Queue, facts: WaitingFacts) -> AsyncIterator[Reason]:
        if queue.max_running is not None:
            running = await limits.running_slots(self._infra.reads, row.lane)
            if running >= queue.max_running:
                detail = f"{running} jobs of {queue.name} run, at most {queue.max_running} may"
                yield Reason(code="queue_at_limit", detail=detail, running=running, limit=queue.max_running)
        if queue.rate is not None:
            leave = await self._gate.remaining_rate(self._infra.reads, queue, row.lane, 1)
            if leave.most == 0 and leave.retry_at is not None:
                detail = f"the rate of {queue.name} lets the next one through at {_told(leave.retry_at)}"
                yield Reason(code="rate_limited", detail=detail, until=leave.retry_at, limit=queue.rate.limit)
        ahead = await self._ahead(row, queue, facts) if row.state == "ready" else 0
        if ahead:
            many = "at least " if ahead == MAX_COUNTED else ""
            yield Reason(
                code="jobs_ahead", detail=f"{many}{_counted(ahead, 'job')} will be handed out before it", ahead=ahead
            )

    async def _ahead(self, row: JobRow, queue: Queue, facts: WaitingFacts) -> int:
        if queue.fair and facts.turn is not None:
            return await store.ahead_admitted(self._infra.reads, row.id, facts.priority, facts.turn)
        return await store.ahead_in_queue(self._infra.reads, row.id, facts.priority)


def _plain(row: JobRow) -> Reason:
    """Of a job that runs, or has ended."""
    if row.state == "running":
        by = f" by {row.worker_id}" if row.worker_id else ""
        detail = f"it is being run{by}"
        return Reason(
            code="running", detail=detail, since=unset_if_none(row.started_at), worker_id=unset_if_none(row.worker_id)
        )
    detail = f"it is {row.state}" + (f": {_reason(row)}" if row.state_reason else "")
    return Reason(
        code=row.state, detail=detail, since=unset_if_none(row.finished_at), reason=unset_if_none(row.state_reason)
    )


def _reason(row: JobRow) -> str:
    """The reason as a program reads it, and what it means."""
    meanings = {
        "attempts_exhausted": f"it has used all of its attempts, {row.max_attempts}",
        "not_retryable": "its worker asked for no retry",
        "poison": f"its lease ran out {_counted(row.crashes, 'time')}",
        "expired": "no worker began it before its expires_at",
        "undeliverable": f"it was handed out {_counted(row.deliveries, 'time')} without an end",
        "dependency_failed": "a job that it depends on did not complete",
        "cancelled_by_user": "a caller cancelled it",
    }
    meaning = meanings.get(row.state_reason or "")
    return f"{row.state_reason}, {meaning}" if meaning else f"{row.state_reason}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _told(instant: datetime) -> str:
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")
