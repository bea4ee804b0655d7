"""Sync match: stores a new job as already leased to a waiting poller, in one commit.

The worker has the job as soon as the producer has the response, and no claim statement runs.

    offered   -> committed    the INSERT is committed; the poller gets the jobs
    offered   -> aborted      Postgres rejected the INSERT; the poller sleeps on
    offered   -> abandoned    the outcome of the INSERT is unknown; the poller sleeps on
    committed -> abandoned    the poller no longer waits
    abandoned -> returned     `LeaseReturner` found the lease and ended it at no cost
    abandoned -> expired      the lease is over; the lease rescuer takes care of the job

Only where arrival alone decides which poller gets a job: queues without limits, without admission
and not paused; jobs without a group; pollers without an Idempotency-Key or a quota. In all other
cases the poller is woken and claims.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple
from uuid import uuid4

import asyncpg

from app.db.infrastructure import Infrastructure
from app.errors import DatabaseUnavailable
from app.events import EventBus, LeasesAbandoned
from app.jobs.rows import ClaimedRow, NewJob
from app.matching.poller import Poller, Reservation
from app.matching.pollers import PollerRegistry
from app.queues.cache import QueueCache


class SyncMatcher:
    def __init__(self, *, infra: Infrastructure, queues: QueueCache, pollers: PollerRegistry, events: EventBus) -> None:
        self._infra = infra
        self._queues = queues
        self._pollers = pollers
        self._events = events

    def offer(self, lane: int, rows: Sequence[NewJob]) -> "SyncMatch":
        """Called right before the INSERT, because the leases begin now.

        From here on the matched pollers wait for the outcome of the INSERT.
        """
        queue = self._queues.by_lane(lane)
        if (
            not self._pollers.count(queue.name)
            or queue.paused
            or queue.is_limited
            or self._queues.held_groups(lane) is not None
        ):
            return SyncMatch(self, rows, ())
        candidates = [row for row in rows if row.state == "ready" and row.group_key is None and row.expires_at is None]
        pairs = self._pollers.match(queue.name, candidates)
        leased = {row.id: self._as_leased(row, poller) for poller, jobs in pairs for row in jobs}
        matches = [
            _Match(poller, poller.reserve(), [_to_claimed_job(lane, leased[row.id]) for row in jobs])
            for poller, jobs in pairs
        ]
        return SyncMatch(self, [leased.get(row.id, row) for row in rows], matches)

    def _as_leased(self, row: NewJob, poller: Poller) -> NewJob:
        now = self._infra.now()
        seconds = poller.lease_seconds or row.lease_seconds or self._infra.settings.default_lease_seconds
        return row._replace(
            state="running",
            worker_id=poller.worker_id,
            started_at=now,
            lease_token=uuid4(),
            lease_expires_at=now + timedelta(seconds=min(seconds, row.timeout_seconds or seconds)),
            deadline_at=now + timedelta(seconds=row.timeout_seconds) if row.timeout_seconds else None,
        )

    def count_matched(self, matched: int) -> None:
        self._infra.metrics.matched.inc(matched)

    def abandon(self, rows: Sequence[ClaimedRow]) -> None:
        """The jobs may be stored as leased to a poller that never learns of it.

        They must not wait until the lease expires, so `LeaseReturner` returns them.
        """
        self._events.publish(LeasesAbandoned(rows))


class _Match(NamedTuple):
    poller: Poller
    reservation: Reservation
    rows: list[ClaimedRow]


class SyncMatch:
    """New jobs right before their INSERT: `rows` as they will be stored, and the pollers that get
    them.
    """

    def __init__(self, matcher: SyncMatcher, rows: Sequence[NewJob], matches: Sequence[_Match]) -> None:
        self.rows = rows
        self._matcher = matcher
        self._matches = matches

    def committed(self) -> None:
        """Called after the commit."""
        for poller, reservation, rows in self._matches:
            if poller.deliver(reservation, rows):
                self._matcher.count_matched(len(rows))
            else:
                self._matcher.abandon(rows)

    def aborted(self, error: BaseException) -> None:
        """Called when the INSERT raises.

        If `error` says `unknown`, the rows may be stored all the same.
        """
        for poller, reservation, rows in self._matches:
            poller.deliver(reservation, ())
            if not _was_not_stored(error):
                self._matcher.abandon(rows)


def _was_not_stored(error: BaseException) -> bool:
    """A Postgres error that was not translated is about the rows: Postgres rejected them."""
    return isinstance(error, asyncpg.PostgresError) or (
        isinstance(error, DatabaseUnavailable) and error.outcome == "not_done"
    )


def _to_claimed_job(lane: int, row: NewJob) -> ClaimedRow:
    """The row that the claim statement would return."""
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
        started_epoch=row.started_at.timestamp(),
        lease_seconds=(row.lease_expires_at - row.started_at).total_seconds(),
        waited_seconds=(row.started_at - row.run_at).total_seconds(),
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
        admission=None,
        slice_number=1,
        size=0,  # not measured: MAX_MATCHED_JOBS bounds the response
    )
