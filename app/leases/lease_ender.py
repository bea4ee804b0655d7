"""Ends leases other than by completion, for a worker's settlement or for the broker.

    running -> scheduled         fail with attempts left, snooze; by the broker: timeout
    running -> ready | pending   release, and fail or snooze without a delay; by the broker: return,
                                 reconcile, expire
    running -> dead              no attempt, crash or delivery left, or the failure is not
                                 retryable; see retry_decision.py
    running -> cancelled         any outcome, if a cancellation was requested

The lease ender reads the leases and decides what their jobs become. It then applies the decisions
to the leases that have not changed in the meantime.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from operator import attrgetter
from uuid import UUID

from app.concurrency.group_scheduler import GroupScheduler
from app.db.infrastructure import Infrastructure
from app.db.lanes import group_by_lane
from app.db.pool import Executor, for_each, retry_after_deadlock, uses_reserved_connections
from app.events import EventBus, JobsClaimable
from app.http.schema_types import value_or
from app.jobs.bulk_insert import MAX_STATEMENT_BYTES
from app.leases import store
from app.leases.retry_decision import TIMED_OUT, LeaseEnd, decide
from app.leases.rows import LeaseRow, RetryDecision, SettledRow
from app.locks import store as locks
from app.queues.cache import QueueCache
from app.rng import rng
from app.slices import by_size, in_slices

# Assumed size of a lease end without its texts. With MAX_STATEMENT_BYTES of 256 KiB, a batch has at
# most 256 leases. To decide and write 256 leases takes 2 ms.
LEASE_BYTES = 1024
_MAX_TRIES = 3  # a cancellation or heartbeat between decision and update makes the decision invalid

# How long a lease is kept after the deadline of its run. If the worker sends a heartbeat in this
# time, the response tells it to stop, and the worker may still settle the job.
DEADLINE_GRACE = timedelta(seconds=1)


class LeaseEnder:
    def __init__(
        self, *, infra: Infrastructure, queues: QueueCache, events: EventBus, group_scheduler: GroupScheduler
    ) -> None:
        self._infra = infra
        self._queues = queues
        self._events = events
        self._group_scheduler = group_scheduler

    @uses_reserved_connections
    async def end(self, lease_ends: Sequence[LeaseEnd]) -> list[SettledRow]:
        """Ends leases on behalf of the broker. Skips leases that have changed in the meantime."""
        lanes = group_by_lane(lease_ends, attrgetter("job_id"))
        return [row for rows in await for_each(lanes.items(), lambda item: self.end_lane(*item)) for row in rows]

    async def end_lane(self, lane: int, lease_ends: Sequence[LeaseEnd]) -> list[SettledRow]:
        rows = await self._end_in_batches(self._infra.db, lane, lease_ends)
        self.publish_ended(lane, rows)
        return rows

    @retry_after_deadlock
    async def end_with_cooldowns(self, lane: int, lease_ends: Sequence[LeaseEnd]) -> list[SettledRow]:
        """Ends leases by failures with scope `group`, and starts the cool-downs of the groups.

        Such a failure says that a downstream system of the group is overloaded, and for how long.
        The leases end and the cool-downs start in one transaction under the lane lock. So no job of
        the groups is admitted in between, and a repeated call finds both done or neither.
        """
        if not lease_ends:
            return []
        await self._queues.load_lanes([lane])  # in the transaction this would need a second connection
        async with self._infra.db.transaction() as transaction:
            await locks.lock_lane(transaction, lane)
            rows = await self._end_in_batches(transaction, lane, lease_ends)
            cooldowns = _cooldowns(lease_ends, {row.id: row for row in rows}, self._infra.now())
            if cooldowns:
                await self._group_scheduler.start_cooldowns(transaction, lane, cooldowns)
        self.publish_ended(lane, rows)
        if cooldowns:
            await self._infra.config_versions.announce()
        return rows

    def publish_ended(self, lane: int, rows: Sequence[SettledRow]) -> None:
        """Publishes the jobs whose leases have ended, also by completion.

        In a queue with `max_running`, also publishes that as many jobs may be claimable.
        """
        self._events.publish_moved(lane, rows)
        if rows and self._queues.has_max_running(lane):
            self._events.publish(JobsClaimable(lane, len(rows)))

    async def _end_in_batches(self, db: Executor, lane: int, lease_ends: Sequence[LeaseEnd]) -> list[SettledRow]:
        """Ends leases in batches, so that no statement blocks the event loop.

        Leases are ended and returned in the order of the job ids: transactions must lock jobs in
        this order, and the low-water marks need the first id first.
        """
        ended: list[SettledRow] = []
        for batch in by_size(sorted(lease_ends, key=attrgetter("job_id.int")), _size, MAX_STATEMENT_BYTES):
            ended += await self._end_batch(db, lane, batch)
        return ended

    async def _end_batch(self, db: Executor, lane: int, lease_ends: Sequence[LeaseEnd]) -> list[SettledRow]:
        ended: list[SettledRow] = []
        remaining = {lease_end.job_id: lease_end for lease_end in lease_ends}
        for _ in range(_MAX_TRIES):
            decisions = await self._decide(db, lane, list(remaining.values())) if remaining else []
            if not decisions:
                break
            rows = await self._apply(db, lane, decisions)
            ended += rows
            for row in rows:
                del remaining[row.id]
        return sorted(ended, key=attrgetter("id"))

    async def _decide(self, db: Executor, lane: int, lease_ends: Sequence[LeaseEnd]) -> list[RetryDecision]:
        now = self._infra.now()
        by_job = {lease_end.job_id: lease_end for lease_end in lease_ends}
        ids = sorted(by_job)
        rows = await store.get_leases(db, lane, ids, [by_job[job_id].token for job_id in ids])
        return [
            decide(row, lease_end, self._infra.settings, now, rng.uniform(-1, 1))
            async for row in in_slices(sorted(rows))
            if (lease_end := _effective_end(row, by_job[row.id], now)) is not None
        ]

    async def _apply(self, db: Executor, lane: int, decisions: Sequence[RetryDecision]) -> list[SettledRow]:
        now = self._infra.now()
        requeued = [decision for decision in decisions if decision.next_state in ("ready", "scheduled")]
        dead = [decision for decision in decisions if decision.next_state == "dead"]
        cancelled = [decision for decision in decisions if decision.next_state == "cancelled"]
        rows = await self._requeue(db, lane, requeued) if requeued else []
        rows += await store.move_to_dead_letters(db, lane, dead, now) if dead else []
        if cancelled:
            rows += await store.finish_cancelled(db, lane, cancelled, now, *self._queues.retention(lane, now))
        return rows

    async def _requeue(self, db: Executor, lane: int, decisions: Sequence[RetryDecision]) -> list[SettledRow]:
        await self._queues.load_lanes([lane])
        return await store.requeue(
            db,
            lane,
            decisions,
            strict=self._queues.by_lane(lane).max_running_per_group == 1,
            held_groups=self._queues.held_groups(lane),
            cooling_groups=self._queues.cooling_groups.get(lane),
        )


def _size(lease_end: LeaseEnd) -> int:
    """Estimates how many bytes a lease end takes in a statement.

    Adds the sizes of the worker's texts to LEASE_BYTES for the other columns.
    """
    error = lease_end.error
    texts = () if error is None else (error.message, value_or(error.stack, ""), value_or(error.details, b""))
    return LEASE_BYTES + len(lease_end.checkpoint or "") + sum(map(len, texts))


def _effective_end(row: LeaseRow, lease_end: LeaseEnd, now: datetime) -> LeaseEnd | None:
    """Decides how the lease ends now: as requested, by timeout, or not at all (None).

    If a lease expires at the deadline of its run, it ends by timeout when DEADLINE_GRACE is over.
    """
    outcome = lease_end.outcome
    is_expired = row.lease_expires_at is not None and row.lease_expires_at <= now
    if outcome in ("return", "reconcile", "expire") and row.state != "running":
        return None
    if (outcome == "expire" and not is_expired) or (outcome == "reconcile" and row.unreported_since is None):
        return None  # a heartbeat came first
    if outcome == "expire" and row.deadline_at is not None and row.deadline_at == row.lease_expires_at:
        is_in_grace = now < row.deadline_at + DEADLINE_GRACE
        return None if is_in_grace else replace(lease_end, outcome="timeout", error=TIMED_OUT)
    return lease_end


def _cooldowns(lease_ends: Sequence[LeaseEnd], ended: dict[UUID, SettledRow], now: datetime) -> dict[str, datetime]:
    """Returns the end of the cool-down of each group.

    - A cool-down ends when the job that failed is retried.
    - If that job is dead or cancelled, the cool-down ends `retry_after_seconds` from now.
    - If several jobs of a group failed, the cool-down ends at the latest of these times.
    """
    cooldowns: dict[str, datetime] = {}
    for lease_end in lease_ends:
        row = ended.get(lease_end.job_id)
        if row is None or row.group_key is None:
            continue
        until = row.run_at or now + timedelta(seconds=lease_end.delay_seconds or 0)
        cooldowns[row.group_key] = max(until, cooldowns.get(row.group_key, until))
    return cooldowns
