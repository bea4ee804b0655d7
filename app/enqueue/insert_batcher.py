"""Inserts the jobs of concurrent calls with one statement for each lane, in autocommit.

Sync match: if a waiting poller accepts a new job, the INSERT stores the job as already leased to
this poller. The worker has the job as soon as the producer has the response, and no claim statement
runs. The states of a match:

    matched   -> committed    the INSERT is committed; the poller gets the jobs
    matched   -> aborted      Postgres rejected the INSERT; the poller continues to wait
    matched   -> abandoned    the outcome of the INSERT is unknown; the poller continues to wait
    committed -> abandoned    the poller no longer waits for the jobs
    abandoned -> returned     `LeaseReturner` found the lease and ended it without counting an
                              attempt
    abandoned -> expired      the lease expired first; the lease rescuer ends it

A sync match is made only if the order of arrival alone decides which poller gets a job:

- in a queue that has no `max_running`, no `rate` and no held group, and is not paused;
- for ready jobs without a group or a start deadline;
- for pollers whose claim has no Idempotency-Key and whose API key has no quota of leases.

In all other cases the broker wakes a poller after the INSERT, and the poller claims the job.
"""

import secrets
from collections.abc import Sequence
from datetime import timedelta
from itertools import chain
from typing import NamedTuple
from uuid import UUID

import asyncpg

from app.db.batcher import Batcher
from app.db.infrastructure import Infrastructure
from app.enqueue.drafts import id_of_row
from app.errors import DatabaseUnavailable
from app.events import EventBus, LeasesAbandoned
from app.jobs import store
from app.jobs.lease_tokens import lease_token
from app.jobs.new_jobs import NewJobs
from app.jobs.rows import ClaimedRow, NewJob
from app.matching.poller import Poller, Reservation
from app.matching.pollers import PollerRegistry
from app.queues.cache import QueueCache

# A call with this many jobs or more gets a statement of its own, because sharing would cost more
# time than it saves.
MAX_SHARED_JOBS = 100


class _Match(NamedTuple):
    """A poller, and the jobs that the INSERT stores as leased to this poller."""

    poller: Poller
    reservation: Reservation
    rows: list[ClaimedRow]


class InsertBatcher(Batcher[int, Sequence[NewJob], None]):
    """Inserts jobs that need no other statement than an INSERT. Concurrent calls share the INSERT.

    The jobs of a call must have the same lane and must be in the order of their ids.
    """

    def __init__(self, *, infra: Infrastructure, queues: QueueCache, pollers: PollerRegistry, events: EventBus) -> None:
        super().__init__("enqueue", infra.settings.acquire_timeout_seconds, max_weight=MAX_SHARED_JOBS)
        self._infra = infra
        self._queues = queues
        self._pollers = pollers
        self._events = events

    async def run_batch(self, lane: int, calls: Sequence[Sequence[NewJob]]) -> Sequence[None]:
        rows = sorted(chain.from_iterable(calls), key=id_of_row) if len(calls) > 1 else calls[0]
        matches: Sequence[_Match] = ()
        try:
            async with self._infra.db.autocommit() as connection:
                rows, matches = self._match(lane, rows)
                await store.enqueue(connection, lane, rows)
        except BaseException as error:
            self._abort(matches, error)
            raise
        self._deliver(matches)
        self.publish(lane, rows)
        return [None] * len(calls)

    def publish(self, lane: int, rows: Sequence[NewJob]) -> None:
        """Counts the inserted jobs of one lane in the metrics, and publishes their event.

        Call this after the commit, with the rows in the order of their ids.
        """
        self._infra.metrics.enqueued.inc(len(rows))
        if isinstance(rows, NewJobs) and rows.common_state is not None:
            self._events.publish_moved_to(rows.common_state, lane, rows)
        else:
            self._events.publish_moved(lane, rows)

    def _match(self, lane: int, rows: Sequence[NewJob]) -> tuple[Sequence[NewJob], Sequence[_Match]]:
        """Matches jobs to waiting pollers. Returns all rows to store, and the matches.

        In the returned rows the matched jobs are already leased. Call this right before the INSERT,
        because the leases begin now and the matched pollers wait for the outcome of the INSERT.
        """
        queue = self._queues.by_lane(lane)
        if (
            not self._pollers.count(queue.name)
            or queue.paused
            or queue.is_limited
            or self._queues.held_groups(lane) is not None
        ):
            return rows, ()
        candidates = [row for row in rows if row.state == "ready" and row.group_key is None and row.expires_at is None]
        pairs = self._pollers.match(queue.name, candidates)
        if not pairs:
            return rows, ()
        leased: dict[UUID, NewJob] = {}
        for poller, jobs in pairs:
            secret = secrets.token_hex(16)
            leased |= {row.id: self._as_leased(row, poller, secret) for row in jobs}
        matches = [
            _Match(poller, poller.reserve(), [_to_claimed_job(lane, leased[row.id]) for row in jobs])
            for poller, jobs in pairs
        ]
        return [leased.get(row.id, row) for row in rows], matches

    def _as_leased(self, row: NewJob, poller: Poller, secret: str) -> NewJob:
        now = self._infra.now()
        seconds = poller.lease_seconds or row.lease_seconds or self._infra.settings.default_lease_seconds
        return row._replace(
            state="running",
            worker_id=poller.worker_id,
            started_at=now,
            lease_token=lease_token(secret, row.id),
            lease_expires_at=now + timedelta(seconds=min(seconds, row.timeout_seconds or seconds)),
            deadline_at=now + timedelta(seconds=row.timeout_seconds) if row.timeout_seconds else None,
        )

    def _deliver(self, matches: Sequence[_Match]) -> None:
        """Delivers the jobs of a committed INSERT to the matched pollers.

        If a poller no longer waits, `LeaseReturner` ends the leases of its jobs.
        """
        for poller, reservation, rows in matches:
            if poller.deliver(reservation, rows):
                self._infra.metrics.matched.inc(len(rows))
            else:
                self._events.publish(LeasesAbandoned(rows))

    def _abort(self, matches: Sequence[_Match], error: BaseException) -> None:
        """Ends the reservations of the matched pollers, because the INSERT has raised `error`.

        Despite the error, the INSERT may have stored the jobs as leased. No worker has their lease
        tokens, and no worker could claim the jobs before the leases expire. So `LeaseReturner` ends
        these leases before they expire.
        """
        for poller, reservation, rows in matches:
            poller.deliver(reservation, ())
            if _may_be_stored(error):
                self._events.publish(LeasesAbandoned(rows))


def _may_be_stored(error: BaseException) -> bool:
    """Whether the INSERT may have stored the jobs despite the error.

    - DatabaseUnavailable: its `outcome` says whether that is possible. `Checkout` raises it if the
      database was unavailable.
    - Any other error of Postgres: no, because Postgres rejected the rows.
    - Any other exception, such as a cancellation: yes.
    """
    if isinstance(error, DatabaseUnavailable):
        return error.outcome != "not_done"
    return not isinstance(error, asyncpg.PostgresError)


def _to_claimed_job(lane: int, row: NewJob) -> ClaimedRow:
    """Builds the row that a claim would return for a new job that is stored as leased."""
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
