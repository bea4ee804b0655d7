"""Serves a claim request as a long poll: claims, waits for a wake-up, and claims again.

The states of a claim request:

    arrived  -> refused    the broker drains or is full, or the worker's directive is `drain` or
                           `stop`
    arrived  -> claiming   in all other cases
    claiming -> answered   the claim has found jobs
    claiming -> answered   the claim has found nothing, and the wait is over
    claiming -> answered   without jobs instead of rejected, if the request has settled jobs
    claiming -> waiting    the claim has found nothing, and there is time left
    claiming -> rejected   the API key was revoked or has expired, or its quota of leases is used up
    waiting  -> claiming   woken (see matching/pollers.py), or the wait is over: claims a last time
    waiting  -> answered   a sync match has delivered jobs
    waiting  -> dropped    the client has disconnected
    waiting  -> refused    one of the reasons for a refusal on arrival applies now

A refused claim gets no new jobs. If it repeats an Idempotency-Key, it gets the leases of the first
call with that key. A claim that carries settlements commits them first. It waits only with
`wait_after_settle`.

Four layers keep claimed jobs from being lost when a client disconnects:

    1. No claim statement starts for a client that is not connected.
    2. If the client disconnects during the claim, its jobs are requeued, and no attempt is counted.
    3. A claim with an Idempotency-Key can be repeated and gets the same leases (caller_claims.py).
    4. Heartbeats with `holds_all` requeue jobs that the worker does not list (heartbeat.py).
"""

import math
import secrets
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta

from app.db.infrastructure import Infrastructure
from app.errors import DatabaseUnavailable
from app.events import EventBus, LeasesAbandoned
from app.http.authorization import Access
from app.http.schema_types import UNSET
from app.jobs.rows import ClaimedRow
from app.leases.caller_claims import CallerClaims
from app.leases.claim import ClaimService, may_be_truncated
from app.leases.lease_ender import LeaseEnder
from app.leases.parent_results import ParentResults, read_parent_results
from app.leases.retry_decision import LeaseEnd
from app.leases.rows import ClaimContext, ClaimParams, ClaimResult
from app.leases.schemas import ClaimAnswer, ClaimJobs, SettleResult
from app.leases.settle import SettlementService
from app.leases.to_response import PollResult
from app.leases.validation import check_claim
from app.matching.poller import Poller, WakeUp
from app.matching.pollers import PollerRegistry
from app.queues.cache import QueueCache
from app.rng import rng
from app.server.exchange import Client
from app.workers.registry import PollHistory, WorkerRegistry

BUSY_MS = 1000  # poll_after_ms of a refused claim
# poll_after_ms of a claim that found no job. The time that the claim has waited is subtracted. If a
# claim that did not wait returned 0, the worker would claim again and again without a pause.
IDLE_MS = 500
JITTER = 0.1  # a wait is up to 10 % shorter, so that polls that begin together do not end together
_DEFAULT_QUEUES = ("default",)


class LongPoll:
    def __init__(
        self,
        *,
        infra: Infrastructure,
        queues: QueueCache,
        events: EventBus,
        pollers: PollerRegistry,
        settlements: SettlementService,
        lease_ender: LeaseEnder,
        workers: WorkerRegistry,
        poll_history: PollHistory,
        claims: ClaimService,
        caller_claims: CallerClaims,
    ) -> None:
        self._infra = infra
        self._queues = queues
        self._events = events
        self._pollers = pollers
        self._settlements = settlements
        self._lease_ender = lease_ender
        self._workers = workers
        self._poll_history = poll_history
        self._claims = claims
        self._caller_claims = caller_claims

    async def poll(self, request: ClaimJobs, key: str | None, client: Client, access: Access) -> PollResult:
        """Commits the settlements of the request, then claims jobs, now or when they become ready.

        A claim that has settled jobs waits only with `wait_after_settle`.
        """
        queue_names = _DEFAULT_QUEUES if request.queues is UNSET else request.queues
        limit = 1 if request.max_jobs is UNSET else request.max_jobs
        check_claim(request, queue_names, limit, access, self._infra.settings)
        can_match = key is None and access.max_leases is None
        poller = _poller(request, queue_names, limit, client, can_match=can_match)
        self._workers.record_seen(poller.worker_id, access.caller)
        settled = await self._settle(request, access, client)
        wait_seconds = 0.0 if request.wait_seconds is UNSET else self._choose_wait(request.wait_seconds)
        may_wait = not settled or request.wait_after_settle is True
        began = time.monotonic()
        wait_until = began + (wait_seconds if may_wait else 0.0)
        context = ClaimContext(key, access, has_settled=bool(settled))
        self._pollers.add(poller)
        try:
            result = await self._claim_or_wait(poller, limit, wait_until, context, client)
            names = {lane: self._queues.name_by_lane(lane) for lane in {row.lane for row in result.rows}}
            if result.rows:
                self._consume_wake_ups(poller, result.rows, names, limit)
            rows = await self._requeue_if_disconnected(result.rows, key, client)
            # A claim that was not allowed to wait counts as if it had waited: its poll_after_ms is
            # smaller, because the next claim may wait.
            waited_seconds = time.monotonic() - began if may_wait else wait_seconds
            poll_after_ms = 0 if rows else self._poll_after_ms(poller, result, waited_seconds)
        finally:
            self._pollers.remove(poller)
        with_parents = request.parent_results is True
        parents = await self._parents_or_requeue(rows, key, has_settled=bool(settled)) if with_parents else None
        answer = ClaimAnswer(
            jobs=[],
            settled=settled,
            directive=self._workers.directive(poller.worker_id),
            poll_after_ms=poll_after_ms,
            server_time=self._infra.now(),
        )
        return PollResult(rows, names, parents, answer)

    async def _settle(self, request: ClaimJobs, access: Access, client: Client) -> list[SettleResult]:
        """Commits the settlements, and frees their memory, up to 8 MB: the claim may wait."""
        if request.settle is UNSET:
            return []
        settled = await self._settlements.settle(request.settle, access, "/settle")
        request.settle.clear()
        client.release_body()
        return settled

    def _choose_wait(self, requested_seconds: float) -> float:
        return min(requested_seconds, self._infra.settings.max_wait_seconds) * (1 - rng.uniform(0, JITTER))

    def _poll_after_ms(self, poller: Poller, result: ClaimResult, waited_seconds: float) -> int:
        """Returns how many milliseconds the worker should wait after a claim that found no job.

        Even if a rate limit or a quota allows no job for longer, the result is at most
        `max_wait_seconds` (or IDLE_MS, if that is longer), because a worker learns of a directive
        only when it polls.
        """
        if not self._may_claim(poller.worker_id):
            return BUSY_MS
        if result.retry_at is None:
            return max(0, math.ceil(IDLE_MS - waited_seconds * 1000))
        milliseconds = math.ceil((result.retry_at - self._infra.now()) / timedelta(milliseconds=1))
        return min(max(1, milliseconds), max(IDLE_MS, self._infra.settings.max_wait_seconds * 1000))

    def _may_claim(self, worker_id: str | None) -> bool:
        """Whether the broker is neither draining nor full, and the worker's directive is `run`."""
        is_full = self._pollers.open_claims > self._infra.settings.max_parked_polls
        return not self._pollers.draining and not is_full and self._workers.directive(worker_id) == "run"

    async def _claim_or_wait(
        self, poller: Poller, limit: int, wait_until: float, context: ClaimContext, client: Client
    ) -> ClaimResult:
        """Claims, waits and claims again, until there are jobs, time is up or a claim is refused.

        This is layer 1 of the four in the module's docstring: a claim runs only if a job may be
        ready and the client is connected.
        """
        result = ClaimResult([])
        while self._may_claim(poller.worker_id):
            poller.begin_claim()
            result = await self._claim_once(poller, limit, context, client)
            if result.rows or result.repeated or result.ends_wait:
                return result
            remaining = wait_until - time.monotonic()
            matched = await poller.wait(remaining)
            if matched:
                return ClaimResult(await self._accept_match([*matched], context))
            if remaining <= 0:
                break
            if client.is_disconnected:
                self._infra.metrics.parked_left.inc()
                break
        if context.key is not None and not self._may_claim(poller.worker_id):
            return ClaimResult(await self._caller_claims.repeat(context))
        return result

    async def _claim_once(self, poller: Poller, limit: int, context: ClaimContext, client: Client) -> ClaimResult:
        """Claims from the requested queues that exist and are not paused.

        Before each claim, checks the configuration and the API key, because they may have changed
        during the wait.
        """
        await self._infra.config_versions.ensure_fresh()
        if not context.is_key_active():
            return ClaimResult([], ends_wait=True)
        queues = await self._queues.find_all(poller.queues)
        job_types = None if poller.job_types is None else sorted(poller.job_types)
        self._poll_history.record([queue.name for queue in queues], job_types, context.access.caller)
        claimable = [queue for queue in queues if not queue.paused]
        params = ClaimParams(
            worker_id=poller.worker_id,
            secret=secrets.token_hex(16),
            lease_seconds=poller.lease_seconds,
            default_lease_seconds=self._infra.settings.default_lease_seconds,
            max_bytes=self._infra.settings.max_batch_bytes,
            allow_one_oversized=True,
            job_types=job_types,
            client=client,
            quota_owner=None if context.access.max_leases is None else context.access.caller,
        )
        if context.key is None and context.access.max_leases is None:
            result = await self._claims.claim(claimable, limit, params)
        else:
            result = await self._caller_claims.claim_for_caller(claimable, limit, params, context)
        # A requested queue that is paused or missing may have claimable jobs before retry_at.
        return result if len(claimable) == len(poller.queues) else result._replace(retry_at=None)

    async def _accept_match(self, rows: list[ClaimedRow], context: ClaimContext) -> list[ClaimedRow]:
        """Returns the jobs that a sync match has leased to the poller.

        Requeues them if the API key was revoked or has expired during the wait. Then raises
        Unauthenticated, unless the request has settled jobs.
        """
        self._claims.record_claimed(rows)
        if context.access.has_key_ended():
            await self._requeue_undelivered(rows)
        return rows if context.is_key_active() else []

    async def _requeue_if_disconnected(
        self, rows: list[ClaimedRow], key: str | None, client: Client
    ) -> list[ClaimedRow]:
        """Requeues the jobs at no cost if the client has disconnected. Returns the jobs to deliver.

        This is layer 2 of the four in the module's docstring. The jobs of a claim with an
        Idempotency-Key stay leased, because the worker repeats the claim. If the broker requeued
        them as well, two workers could have the same job.
        """
        if not client.is_disconnected or key is not None or not rows:
            return rows
        await self._requeue_undelivered(rows)
        return []

    async def _requeue_undelivered(self, rows: Sequence[ClaimedRow]) -> None:
        await self._lease_ender.end([LeaseEnd(row.id, row.lease_token, "return") for row in rows])
        self._infra.metrics.undone.inc(len(rows))

    def _consume_wake_ups(
        self, poller: Poller, rows: Sequence[ClaimedRow], names: Mapping[int, str], limit: int
    ) -> None:
        """Tells the poller which of its wake-ups the claim has answered.

        If the claim returned as many jobs as requested, or as many as fit into the response, more
        jobs may be ready. Then the poller keeps the wake-ups that name no job type.
        """
        settings = self._infra.settings
        claimed_all = len(rows) < limit and not may_be_truncated(rows, limit, settings.max_batch_bytes, settings)
        claimed_types = {(row.lane, row.job_type) for row in rows}
        poller.consume({WakeUp(names[lane], job_type) for lane, job_type in claimed_types}, claimed_all=claimed_all)

    async def _parents_or_requeue(
        self, rows: Sequence[ClaimedRow], key: str | None, *, has_settled: bool
    ) -> ParentResults:
        """Reads the results of the parents. If the database is unavailable, requeues the jobs.

        In that case the worker gets an error and no lease tokens. Without the requeue, the jobs
        would stay leased until their leases expire. The jobs of a claim with an Idempotency-Key
        stay leased, because the worker repeats the claim.
        """
        try:
            return await read_parent_results(self._infra, rows)
        except DatabaseUnavailable as error:
            if key is not None:
                raise
            try:
                await self._requeue_undelivered(rows)
            except DatabaseUnavailable:
                self._events.publish(LeasesAbandoned(rows))  # `LeaseReturner` requeues them later
                raise
            raise DatabaseUnavailable(error.detail, "unknown" if has_settled else "not_done") from error


def _poller(request: ClaimJobs, queue_names: Sequence[str], limit: int, client: Client, *, can_match: bool) -> Poller:
    """Creates the poller of a claim request. `queue_names` may contain a name twice.

    `can_match` says whether an enqueue may store jobs as already leased to this poller. It is false
    for a claim with an Idempotency-Key or a quota.
    """
    return Poller(
        list(dict.fromkeys(queue_names)),
        None if request.job_types is UNSET else frozenset(request.job_types),
        None if request.worker_id is UNSET else request.worker_id,
        None if request.lease_seconds is UNSET else request.lease_seconds,
        match_capacity=limit if can_match else 0,
        disconnected=client.disconnected,
    )
