"""Claims ready jobs, queue by queue in order of preference, within the limits of each queue."""

from collections.abc import Awaitable, Callable, Sequence, Set
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from app.db.batcher import Batcher
from app.db.infrastructure import Infrastructure
from app.db.pool import Executor, Transaction
from app.errors import DatabaseUnavailable
from app.events import EventBus
from app.jobs.rows import ClaimedRow
from app.jobs.validation import MAX_METADATA_BYTES
from app.leases import store
from app.leases.duration_histogram import DurationHistogram
from app.leases.limited_claims import LimitedClaims
from app.leases.low_water_marks import LowWaterMarks
from app.leases.rows import ClaimParams, ClaimResult, LanePolicy, PollSlice
from app.queues.cache import Queue, QueueCache
from app.rng import rng
from app.settings import Settings

QUOTA_RETRY_DELAY = timedelta(seconds=1)
# Upper bound for the tags and the progress of one job: 32 tags of 120 characters and progress texts
# of 1,200 characters, each character escaped as six bytes.
MAX_TAGS_AND_PROGRESS_BYTES = 32 * 1024


async def claim_unlocked_lanes_first(
    queues: Sequence[Queue], claim: Callable[..., Awaitable[ClaimResult]]
) -> ClaimResult:
    """Claims from the lanes whose lock is free. If they have no job, waits for the other locks.

    Calls `claim(wait_for_lock=...)` once or twice:

    - The first call skips lanes whose lock is not free, so that a limited queue does not delay
      claims from the other queues. If there is only one lane, the first call waits for its lock.
    - The second call waits for the locks. It is made only if the first call claimed nothing and
      skipped a lane.
    """
    only_one_lane = sum(queue.lanes for queue in queues) <= 1
    first = await claim(wait_for_lock=only_one_lane)
    return await claim(wait_for_lock=True) if first.skipped and not first.rows else first


class ClaimService:
    def __init__(
        self,
        *,
        infra: Infrastructure,
        queues: QueueCache,
        events: EventBus,
        limited_claims: LimitedClaims,
        low_water_marks: LowWaterMarks,
        durations: DurationHistogram,
    ) -> None:
        self._infra = infra
        self._queues = queues
        self._events = events
        self._limited_claims = limited_claims
        self._low_water_marks = low_water_marks
        self._durations = durations
        self._batcher = ClaimBatcher(infra=infra, queues=queues, low_water_marks=low_water_marks)

    async def claim(self, queues: Sequence[Queue], limit: int, params: ClaimParams) -> ClaimResult:
        """Claims up to `limit` jobs. Commits after each lane."""
        result = await claim_unlocked_lanes_first(queues, partial(self._claim_lanes, None, queues, limit, params))
        self.record_claimed(result.rows)
        return result

    async def claim_in_transaction(
        self, transaction: Transaction, queues: Sequence[Queue], limit: int, params: ClaimParams, *, wait_for_lock: bool
    ) -> ClaimResult:
        """Claims up to `limit` jobs on the connection of the caller's transaction.

        Locks the lanes of all limited queues first, in the order of the lanes. The caller calls
        `record_claimed` after its commit, because until then no job is claimed.
        """
        if limit <= 0:  # the quota is used up
            return ClaimResult([], self._infra.now() + QUOTA_RETRY_DELAY, ends_wait=True)
        skipped = await self._limited_claims.lock_lanes(transaction, queues, wait_for_lock=wait_for_lock)
        return await self._claim_lanes(
            transaction, queues, limit, params, locked_by_others=skipped, wait_for_lock=wait_for_lock
        )

    async def _claim_lanes(
        self,
        transaction: Transaction | None,
        queues: Sequence[Queue],
        limit: int,
        params: ClaimParams,
        *,
        wait_for_lock: bool,
        locked_by_others: Set[int] = frozenset(),
    ) -> ClaimResult:
        """Claims lane by lane, until there are enough jobs or the client has disconnected."""
        rows: list[ClaimedRow] = []
        retry_times: list[datetime] = []
        has_skipped = bool(locked_by_others)
        for queue, lane in self._lanes(queues):
            if lane in locked_by_others:
                continue
            if params.client is not None and params.client.is_disconnected:
                break
            try:
                result = await self._claim_lane(
                    transaction, queue, lane, limit - len(rows), params, wait_for_lock=wait_for_lock
                )
            except DatabaseUnavailable:
                if not rows or transaction is not None:
                    raise
                break  # the jobs claimed so far are leased and must reach the worker
            rows += result.rows
            has_skipped = has_skipped or result.skipped
            if result.retry_at is not None:
                retry_times.append(result.retry_at)
            if len(rows) >= limit:
                break
            params = params._replace(
                max_bytes=params.max_bytes - sum(row.size for row in result.rows), allow_one_oversized=not rows
            )
        lanes = sum(queue.lanes for queue in queues)
        # Set only if every lane has a `retry_at`, because a lane without `retry_at` may get a job
        # at any moment.
        retry_at = min(retry_times) if retry_times and len(retry_times) == lanes else None
        return ClaimResult(rows, retry_at, skipped=has_skipped)

    def _lanes(self, queues: Sequence[Queue]) -> list[tuple[Queue, int]]:
        """Returns the lanes of the queues, queue by queue.

        Begins each queue with a random lane, so that no lane is always last.
        """
        lanes: list[tuple[Queue, int]] = []
        for queue in queues:
            first = rng.randrange(queue.lanes) if queue.lanes > 1 else 0
            lanes += [(queue, lane) for lane in (*queue.all_lanes[first:], *queue.all_lanes[:first])]
        return lanes

    async def _claim_lane(
        self,
        transaction: Transaction | None,
        queue: Queue,
        lane: int,
        limit: int,
        params: ClaimParams,
        *,
        wait_for_lock: bool,
    ) -> ClaimResult:
        if queue.is_limited:
            return await self._limited_claims.claim(
                transaction, queue, lane, limit, params, wait_for_lock=wait_for_lock
            )
        held_groups = self._queues.held_groups(lane)
        # Claims that differ only in limit, worker, lease length and client may share a statement.
        may_share = params.job_types is None and params.quota_owner is None and params.allow_one_oversized
        if transaction is None and held_groups is None and may_share:
            return ClaimResult(await self._batcher.add(lane, ClaimCall(limit, params), weight=limit))
        policy = LanePolicy(held_groups, fair=queue.fair)
        if transaction is not None:
            return await self._claim_unless_paused(transaction, lane, limit, params, policy)
        async with self._infra.db.autocommit() as connection:
            return await self._claim_unless_paused(connection, lane, limit, params, policy)

    async def _claim_unless_paused(
        self, db: Executor, lane: int, limit: int, params: ClaimParams, policy: LanePolicy
    ) -> ClaimResult:
        if self._queues.is_paused(lane):
            return ClaimResult([])
        rows = await self._low_water_marks.claim_with_marks(db, lane, limit, params, policy, self._infra.now())
        return ClaimResult(rows)

    async def finish(self) -> None:
        await self._batcher.finish()

    def record_claimed(self, rows: Sequence[ClaimedRow]) -> None:
        """Counts the claimed jobs, records their wait times, and publishes the jobs."""
        self._infra.metrics.claimed.inc(len(rows))
        for lane in {row.lane for row in rows}:
            claimed = [row for row in rows if row.lane == lane]
            waits = [row.waited_seconds for row in claimed if row.waited_seconds is not None]
            self._durations.record(lane, "wait", waits)
            self._events.publish_moved(lane, claimed)


class ClaimCall(NamedTuple):
    """A claim that may share its statement with other claims."""

    limit: int
    params: ClaimParams


class ClaimBatcher(Batcher[int, ClaimCall, list[ClaimedRow]]):
    """Claims jobs for concurrent callers, with one statement for each lane."""

    def __init__(self, *, infra: Infrastructure, queues: QueueCache, low_water_marks: LowWaterMarks) -> None:
        super().__init__("claim", infra.settings.acquire_timeout_seconds)
        self._infra = infra
        self._queues = queues
        self._low_water_marks = low_water_marks

    async def run_batch(self, lane: int, calls: Sequence[ClaimCall]) -> Sequence[list[ClaimedRow]]:
        """Runs one claim statement for all calls. The first call gets the first jobs.

        Claims nothing for clients that disconnected while their call was waiting, and nothing if the
        queue was paused in the meantime.
        """
        connected = [call for call in calls if call.params.client is None or not call.params.client.is_disconnected]
        if not connected:
            return [[] for _ in calls]
        slices = [PollSlice(limit, params.worker_id, params.lease_seconds) for limit, params in connected]
        params = connected[0].params._replace(poll_slices=slices)
        async with self._infra.db.autocommit() as connection:
            if self._queues.is_paused(lane):
                return [[] for _ in calls]
            rows = await self._low_water_marks.claim_with_marks(
                connection, lane, sum(call.limit for call in connected), params, LanePolicy(), self._infra.now()
            )
        claimed: dict[int, list[ClaimedRow]] = {id(call): [] for call in calls}
        for row in rows:
            claimed[id(connected[row.slice_number - 1])].append(row)
        unserved = [call for call in connected if not claimed[id(call)]]
        if unserved and any(
            may_be_truncated(claimed[id(call)], call.limit, call.params.max_bytes, self._infra.settings)
            for call in connected
        ):
            # Jobs that did not fit into a full response are still ready, so the calls that got no
            # job claim again. If that fails, the other calls must not fail, because their jobs are
            # leased already.
            with suppress(DatabaseUnavailable):
                claimed |= zip(map(id, unserved), await self.run_batch(lane, unserved), strict=True)
        return list(claimed.values())


def may_be_truncated(rows: Sequence[ClaimedRow], limit: int, max_bytes: int, settings: Settings) -> bool:
    """Whether the claim may have left out a job because it did not fit into the response.

    If so, more jobs may be ready. False for a claim without jobs, because the first job of a
    response always fits.
    """
    return 0 < len(rows) < limit and sum(row.size for row in rows) + _max_job_bytes(settings) > max_bytes


def _max_job_bytes(settings: Settings) -> int:
    """Returns the maximum size of a job in a response, as the claim statement measures it."""
    payload_and_checkpoint = 2 * settings.max_payload_bytes
    return store.ENVELOPE_BYTES + payload_and_checkpoint + MAX_METADATA_BYTES + MAX_TAGS_AND_PROGRESS_BYTES
