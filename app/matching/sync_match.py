"""Hand-off: a job that comes in while polls wait for one is stored as leased to one of them already, in one commit. The worker has it as
soon as the producer has the answer, and nobody has to look for it.

Only where nothing decides but who came first: queues without limits, turns or a pause, jobs without a group, polls without an
Idempotency-Key or a quota. Everything else is woken and claims."""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID, uuid4

import asyncpg

from app.db.infrastructure import Infrastructure
from app.enqueue.offers import Offer, no_offer
from app.errors import DatabaseUnavailable
from app.jobs.store import NewJob
from app.leases.retry_decision import LeaseEnd
from app.leases.settle import SettlementService
from app.leases.store import ClaimedRow
from app.matching.pollers import Poller, PollerRegistry, Reservation
from app.queues.cache import QueueCache


class SyncMatcher:
    def __init__(
        self, infra: Infrastructure, queues: QueueCache, waiting: PollerRegistry, settlements: SettlementService
    ) -> None:
        self._infra = infra
        self._queues = queues
        self._waiting = waiting
        self._settlements = settlements
        self._doubts: dict[UUID, _AbandonedLease] = {}
        self.wake: Callable[[], None] = lambda: None

    def offer(self, lane: int, rows: Sequence[NewJob]) -> Offer:
        """In the moment in which the rows are sent: then the leases begin. From here on the polls may not leave."""
        queue = self._queues.by_lane(lane)
        if (
            not self._waiting.waiting(queue.name)
            or queue.paused
            or queue.is_limited
            or self._queues.held_groups(lane) is not None
        ):
            return no_offer(lane, rows)
        free = [row for row in rows if row.state == "ready" and row.group_key is None and row.expires_at is None]
        pairs = self._waiting.match(queue.name, free)
        leased = {row.id: self._leased(row, poll) for poll, some in pairs for row in some}
        given = [_Match(poll, poll.promise(), [_claimed(lane, leased[row.id]) for row in some]) for poll, some in pairs]
        return SyncMatch(self, [leased.get(row.id, row) for row in rows], given)

    def _leased(self, row: NewJob, poll: Poller) -> NewJob:
        now = self._infra.now()
        seconds = poll.lease_seconds or row.lease_seconds or self._infra.settings.default_lease_seconds
        return row._replace(
            state="running",
            worker_id=poll.worker_id,
            started_at=now,
            lease_token=uuid4(),
            lease_expires_at=now + timedelta(seconds=min(seconds, row.timeout_seconds or seconds)),
            deadline_at=now + timedelta(seconds=row.timeout_seconds) if row.timeout_seconds else None,
        )

    def count(self, matched: int) -> None:
        self._infra.metrics.matched.inc(matched)

    def abandon(self, rows: Sequence[ClaimedRow]) -> None:
        """They may be stored, leased to a poll that does not hear of it: then they must not wait for the lease to expire."""
        now = time.monotonic()
        for row in rows:
            self._doubts[row.id] = _AbandonedLease(LeaseEnd(row.id, row.lease_token, "undo"), now + row.lasts)
        self.wake()

    async def run_once(self) -> None:
        """Until the job is found and put back, or its lease is over: the server may be committing it even now."""
        now = time.monotonic()
        self._doubts = {job_id: doubt for job_id, doubt in self._doubts.items() if doubt.until > now}
        for row in await self._settlements.end([doubt.lease_end for doubt in self._doubts.values()]):
            del self._doubts[row.id]


class _AbandonedLease(NamedTuple):
    lease_end: LeaseEnd
    until: float


class _Match(NamedTuple):
    poll: Poller
    promise: Reservation
    rows: list[ClaimedRow]


class SyncMatch(Offer):
    def __init__(self, matcher: SyncMatcher, rows: Sequence[NewJob], given: Sequence[_Match]) -> None:
        super().__init__(rows)
        self._matcher = matcher
        self._given = given

    def stored(self) -> None:
        for poll, promise, rows in self._given:
            if poll.keep(promise, rows):
                self._matcher.count(len(rows))
            else:
                self._matcher.abandon(rows)

    def failed(self, error: BaseException) -> None:
        for poll, promise, rows in self._given:
            poll.keep(promise, ())
            if not _undone(error):
                self._matcher.abandon(rows)


def _undone(error: BaseException) -> bool:
    """An error of Postgres that was not made into one of ours is about the rows: it has refused them."""
    return isinstance(error, asyncpg.PostgresError) or (
        isinstance(error, DatabaseUnavailable) and error.outcome == "not_done"
    )


def _claimed(lane: int, row: NewJob) -> ClaimedRow:
    """As the claim statement would tell it."""
    assert row.lease_token is not None
    assert row.lease_expires_at is not None
    assert row.started_at is not None
    return ClaimedRow(
        lane=lane,
        id=row.id,
        job_type=row.job_type,
        payload=row.payload,
        attempt=1,
        max_attempts=row.max_attempts,
        deliveries=1,
        lease_token=row.lease_token,
        began=row.started_at.timestamp(),
        lasts=(row.lease_expires_at - row.started_at).total_seconds(),
        waited=(row.started_at - row.run_at).total_seconds(),
        priority=row.priority,
        checkpoint=None,
        progress=None,
        group_key=None,
        tags=row.tags,
        metadata=row.metadata,
        traceparent=row.traceparent,
        tracestate=row.tracestate,
        deadline_at=row.deadline_at,
        depends_on=None,
        turn=None,
        share=1,
    )
