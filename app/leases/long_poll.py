"""Long poll: claims, waits until a job may be there, and claims again.

    arrived  -> refused    the broker drains or is full, or the worker has a directive
    arrived  -> claiming
    claiming -> answered   the claim has found jobs
    claiming -> answered   it has found nothing, and the wait is over
    claiming -> waiting    it has found nothing
    waiting  -> claiming   woken, see matching/pollers.py
    waiting  -> answered   a sync match has delivered jobs
    waiting  -> dropped    the client has disconnected
    waiting  -> refused    as above

A refused claim with an Idempotency-Key still gets the leases of its first call.

Four layers keep claimed jobs from being lost when a client disconnects:

    1. No claim statement starts for a client that is not connected.
    2. Jobs whose client disconnected during the claim are requeued at no cost.
    3. A claim with an Idempotency-Key can be repeated and gets the same leases (caller_claims.py).
    4. Heartbeats with `holds_all` requeue jobs that the worker does not list (heartbeat.py).
"""

import math
import random
import secrets
import time
from collections.abc import Sequence
from datetime import datetime, timedelta

from app.db.infrastructure import Infrastructure
from app.errors import DatabaseUnavailable, Fault, raise_for_faults
from app.events import EventBus, LeasesAbandoned
from app.http.authorization import Access
from app.http.schema_types import UNSET, value_or
from app.jobs.rows import ClaimedRow
from app.jobs.validation import lease_fault
from app.leases.caller_claims import CallerClaims, ClaimContext
from app.leases.claim import ClaimResult, ClaimService
from app.leases.lease_ender import LeaseEnder
from app.leases.parent_results import ParentResults, read_parent_results
from app.leases.retry_decision import LeaseEnd
from app.leases.rows import ClaimParams
from app.leases.schemas import ClaimAnswer, ClaimJobs
from app.leases.settle import SettlementService
from app.leases.to_response import to_response
from app.matching.poller import Poller, WakeUp
from app.matching.pollers import PollerRegistry
from app.queues.cache import QueueCache
from app.server.exchange import Client
from app.slices import map_in_slices
from app.workers.poll_history import PollHistory
from app.workers.registry import WorkerRegistry

BUSY_MS = 1000  # poll_after_ms of a refused claim
# poll_after_ms of an empty claim that did not wait. With 0 the worker would claim again
# immediately, forever.
IDLE_MS = 500
JITTER = 0.1  # so that pollers that arrive together do not all end together


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

    async def claim(self, request: ClaimJobs, key: str | None, client: Client, access: Access) -> ClaimAnswer:
        self._check(request, access)
        worker_id = value_or(request.worker_id, None)
        self._workers.record_seen(worker_id, access.caller)
        settled = (
            await self._settlements.settle(request.settle, access, "/settle") if request.settle is not UNSET else []
        )
        requested_wait = self._wait_seconds(request)
        wait = 0.0 if settled else requested_wait
        context = ClaimContext(key, access, raise_on_quota=not settled)
        poller = _poller(request, context, client)
        self._pollers.add(poller)
        try:
            rows, retry_at, *_ = await self._poll(request, poller, wait, context, client)
            poll_after_ms = (
                0 if rows else self._poll_after_ms(worker_id, retry_at, idle_ms=0 if requested_wait else IDLE_MS)
            )
        finally:
            self._pollers.remove(poller)
        has_parents = value_or(request.parent_results, False)
        parents = await self._parents_or_undo(rows, key, has_settled=bool(settled)) if has_parents else None
        queue_names = {lane: self._queues.name(lane) for lane in {row.lane for row in rows}}
        return ClaimAnswer(
            jobs=await map_in_slices(lambda row: to_response(row, queue_names[row.lane], parents), rows),
            settled=settled,
            directive=self._workers.directive(worker_id),
            poll_after_ms=poll_after_ms,
            server_time=self._infra.now(),
        )

    def _check(self, request: ClaimJobs, access: Access) -> None:
        settings = self._infra.settings
        for index, name in enumerate(_queue_names(request)):
            access.check(name, f"/queues/{index}")
        is_too_many = value_or(request.max_jobs, 1) > settings.max_claim_jobs
        too_many = (
            Fault("/max_jobs", "invalid", f"max_jobs must be at most {settings.max_claim_jobs}")
            if is_too_many
            else None
        )
        raise_for_faults([too_many, lease_fault(request.lease_seconds, settings, "/lease_seconds")])

    def _wait_seconds(self, request: ClaimJobs) -> float:
        wait = min(value_or(request.wait_seconds, 0.0), self._infra.settings.max_wait_seconds)
        return wait * (1 - random.uniform(0, JITTER))

    def _poll_after_ms(self, worker_id: str | None, retry_at: datetime | None, *, idle_ms: int) -> int:
        """How long the worker should wait before its next claim.

        No longer than the longest wait, because a worker that does not poll gets no directive.
        """
        if not self._is_serving(worker_id):
            return BUSY_MS
        if retry_at is None:
            return idle_ms
        milliseconds = math.ceil((retry_at - self._infra.now()) / timedelta(milliseconds=1))
        return min(max(1, milliseconds), self._infra.settings.max_wait_seconds * 1000)

    def _is_serving(self, worker_id: str | None) -> bool:
        is_full = self._pollers.connected > self._infra.settings.max_parked_polls
        return not self._pollers.draining and not is_full and self._workers.directive(worker_id) == "run"

    async def _poll(
        self, request: ClaimJobs, poller: Poller, wait: float, context: ClaimContext, client: Client
    ) -> ClaimResult:
        """Claims, waits and claims again until there are jobs, the wait is over or it is refused.

        Layer 1: runs SQL only if there may be a job and the client is connected.
        """
        until = time.monotonic() + wait
        retry_at: datetime | None = None
        while self._is_serving(poller.worker_id):
            poller.begin_claim()
            rows, retry_at = await self._try_claim(request, poller, context, client)
            if rows is not None:
                self._consume_wake_ups(poller, rows, value_or(request.max_jobs, 1))
                return ClaimResult(await self._return_if_disconnected(rows, context.key, client))
            poller.nothing_found()
            remaining = until - time.monotonic()
            if remaining <= 0:
                break
            matched = await poller.wait(remaining)
            if matched:
                return ClaimResult(await self._accept_match([*matched], context, client))
            if client.is_disconnected:
                self._infra.metrics.parked_left.inc()
                break
            await self._infra.config_versions.ensure_fresh()
            context.access.check_key_active()
        if context.key is not None and not self._is_serving(poller.worker_id):
            return ClaimResult(await self._caller_claims.replay(context))
        return ClaimResult([], retry_at)

    async def _try_claim(
        self, request: ClaimJobs, poller: Poller, context: ClaimContext, client: Client
    ) -> tuple[list[ClaimedRow] | None, datetime | None]:
        """Claims once. Returns the jobs, and when a rate limit or quota may allow a job again.

        An empty list: a repeated claim whose leases have all ended. None: no job yet, wait.
        """
        params = ClaimParams(
            worker_id=poller.worker_id,
            secret=secrets.token_hex(16),
            lease_seconds=value_or(request.lease_seconds, None),
            default_lease_seconds=self._infra.settings.default_lease_seconds,
            max_bytes=self._infra.settings.max_batch_bytes,
            allow_one_oversized=True,
            job_types=value_or(request.job_types, None),
            quota_owner=context.access.caller if context.access.max_leases is not None else None,
            client=client,
        )
        limit = value_or(request.max_jobs, 1)
        self._poll_history.record(poller.queues, params.job_types, context.access.caller)
        queues = await self._claims.queues(poller.queues)
        result = await self._caller_claims.claim(queues, limit, params, context)
        # A paused or missing queue may get jobs earlier than retry_at.
        retry_at = result.retry_at if len(queues) == len(poller.queues) else None
        return result.rows if result.rows or result.replayed else None, retry_at

    async def _accept_match(self, rows: list[ClaimedRow], context: ClaimContext, client: Client) -> list[ClaimedRow]:
        """Delivers the jobs that a sync match has leased to this poller.

        Requeues them if its API key has expired or was revoked while it waited.
        """
        self._claims.record_claimed(rows)
        if context.access.has_key_ended():
            await self._return_undelivered(rows)
        context.access.check_key_active()
        return await self._return_if_disconnected(rows, None, client)

    async def _return_if_disconnected(
        self, rows: list[ClaimedRow], key: str | None, client: Client
    ) -> list[ClaimedRow]:
        """Layer 2: requeues the jobs at no cost if the client has disconnected.

        Never with an Idempotency-Key: the worker will repeat the call. If the jobs were requeued as
        well, two workers could hold the same job.
        """
        if not client.is_disconnected or key is not None or not rows:
            return rows
        await self._return_undelivered(rows)
        return []

    async def _return_undelivered(self, rows: Sequence[ClaimedRow]) -> None:
        await self._lease_ender.end([LeaseEnd(row.id, row.lease_token, "return") for row in rows])
        self._infra.metrics.undone.inc(len(rows))

    def _consume_wake_ups(self, poller: Poller, rows: Sequence[ClaimedRow], limit: int) -> None:
        """Reports to the poller which wake-ups its claim has used.

        After a full batch or response, jobs may be left, so wake-ups without a type are kept.
        """
        max_bytes = self._infra.settings.max_batch_bytes
        claimed_all = len(rows) < limit and not self._claims.may_be_truncated(rows, limit, max_bytes)
        claimed_types = {(row.lane, row.job_type) for row in rows}
        poller.consume(
            {WakeUp(self._queues.name(lane), job_type) for lane, job_type in claimed_types}, claimed_all=claimed_all
        )

    async def _parents_or_undo(
        self, rows: Sequence[ClaimedRow], key: str | None, *, has_settled: bool
    ) -> ParentResults:
        """The results of the parents. If they cannot be read, the claim is undone.

        The worker gets an error then, and no token: without this, the jobs would stay leased until
        their leases expire. A claim with an Idempotency-Key is kept, because the worker repeats it.
        """
        try:
            return await read_parent_results(self._infra, rows)
        except DatabaseUnavailable as error:
            if key is not None:
                raise
            await self._undo_claim(rows)
            raise DatabaseUnavailable(error.detail, "unknown" if has_settled else "not_done") from error

    async def _undo_claim(self, rows: Sequence[ClaimedRow]) -> None:
        """Requeues the jobs, now or as soon as the database can be reached."""
        try:
            await self._return_undelivered(rows)
        except DatabaseUnavailable:
            self._events.publish(LeasesAbandoned(rows))
            raise


def _queue_names(request: ClaimJobs) -> list[str]:
    """The requested queues. A name may be in the list twice."""
    return value_or(request.queues, ["default"])


def _poller(request: ClaimJobs, context: ClaimContext, client: Client) -> Poller:
    """A sync match can lease jobs to it only if the claim needs no key and no quota."""
    job_types = value_or(request.job_types, None)
    can_match = context.key is None and context.access.max_leases is None
    return Poller(
        list(dict.fromkeys(_queue_names(request))),
        frozenset(job_types) if job_types is not None else None,
        value_or(request.worker_id, None),
        value_or(request.lease_seconds, None),
        match_capacity=value_or(request.max_jobs, 1) if can_match else 0,
        disconnected=client.disconnected,
    )
