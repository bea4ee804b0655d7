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

    1. No statement runs for a client that is not connected.
    2. Jobs whose client disconnected during the claim are returned at no cost.
    3. A claim with an Idempotency-Key can be repeated and gets the same leases (caller_claims.py).
    4. Heartbeats with `holds_all` return leases that the worker does not list (heartbeat.py).
"""

import math
import random
import secrets
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from app.db.infrastructure import Infrastructure
from app.db.lanes import group_by_lane
from app.dependencies import store as dependencies
from app.errors import Fault, raise_for_faults
from app.http.authorization import Access
from app.http.schema_types import UNSET, raw_or_unset, value_or
from app.jobs.rows import ClaimedRow
from app.jobs.validation import lease_fault
from app.leases.caller_claims import CallerClaims, ClaimContext
from app.leases.claim import ClaimResult, ClaimService, may_be_truncated
from app.leases.lease_ender import LeaseEnder
from app.leases.retry_decision import LeaseEnd
from app.leases.schemas import ClaimAnswer, ClaimJobs, ParentResult
from app.leases.settle import SettlementService
from app.leases.store import ClaimParams
from app.leases.to_response import to_response
from app.matching.poller import Poller, WakeUp
from app.matching.pollers import PollerRegistry
from app.queues.cache import QueueCache
from app.server.client import Client
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
        self._pollers = pollers
        self._settlements = settlements
        self._lease_ender = lease_ender
        self._workers = workers
        self._poll_history = poll_history
        self._claims = claims
        self._caller_claims = caller_claims

    async def claim(self, request: ClaimJobs, key: str | None, client: Client, access: Access) -> ClaimAnswer:
        names = list(dict.fromkeys(value_or(request.queues, ["default"])))
        self._check(request, names, access)
        worker_id = value_or(request.worker_id, None)
        self._workers.record_seen(worker_id, access.caller)
        settled = (
            await self._settlements.settle(request.settle, access, "/settle") if request.settle is not UNSET else []
        )
        requested_wait = self._wait_seconds(request)
        wait = 0.0 if settled else requested_wait
        job_types = value_or(request.job_types, None)
        poller = Poller(
            names,
            frozenset(job_types) if job_types is not None else None,
            worker_id,
            value_or(request.lease_seconds, None),
            match_capacity=value_or(request.max_jobs, 1) if key is None and access.max_leases is None else 0,
        )
        client.on_disconnect(poller.wake_up)
        self._pollers.add(poller)
        try:
            rows, retry_at, *_ = await self._poll(
                request, poller, wait, ClaimContext(key, access, raise_on_quota=not settled), client
            )
            poll_after_ms = (
                0 if rows else self._poll_after_ms(worker_id, retry_at, idle_ms=0 if requested_wait else IDLE_MS)
            )
        finally:
            self._pollers.remove(poller)
        parents = await self._parents(rows) if value_or(request.parent_results, False) else None
        queue_names = {lane: self._queues.name(lane) for lane in {row.lane for row in rows}}
        return ClaimAnswer(
            jobs=[to_response(row, queue_names[row.lane], parents) for row in rows],
            settled=settled,
            directive=self._workers.directive(worker_id),
            poll_after_ms=poll_after_ms,
            server_time=self._infra.now(),
        )

    def _check(self, request: ClaimJobs, names: Sequence[str], access: Access) -> None:
        settings = self._infra.settings
        for index, name in enumerate(names):
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
        is_full = self._pollers.parked > self._infra.settings.max_parked_polls
        return not self._pollers.draining and not is_full and self._workers.directive(worker_id) == "run"

    async def _poll(
        self, request: ClaimJobs, poller: Poller, wait: float, context: ClaimContext, client: Client
    ) -> ClaimResult:
        """Layer 1: runs SQL only if there may be a job and the client is connected."""
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
        """Claims once. Returns the jobs, and when an exhausted rate limit allows a job again.

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
        self._poll_history.record(poller.queues, params.job_types)
        queues = await self._claims.queues(poller.queues)
        result = await self._caller_claims.claim(queues, limit, params, context)
        retry_at = result.retry_at if len(queues) == len(poller.queues) else None
        return result.rows if result.rows or result.replayed else None, retry_at

    async def _accept_match(self, rows: list[ClaimedRow], context: ClaimContext, client: Client) -> list[ClaimedRow]:
        """The jobs are stored as leased to this poller.

        Its API key may have ended while it waited.
        """
        self._claims.record_claimed(rows)
        if context.access.is_inactive():
            await self._return_undelivered(rows)
        context.access.check_key_active()
        return await self._return_if_disconnected(rows, None, client)

    async def _return_if_disconnected(
        self, rows: list[ClaimedRow], key: str | None, client: Client
    ) -> list[ClaimedRow]:
        """Layer 2: returns the jobs at no cost if the client has disconnected.

        Never with an Idempotency-Key: the worker will repeat the call. If the jobs were returned as
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
        """A full batch or a full response may have left jobs behind."""
        claimed_all = len(rows) < limit and not may_be_truncated(rows, limit, self._infra.settings.max_batch_bytes)
        types_by_lane = {(row.lane, row.job_type) for row in rows}
        poller.claimed(
            {WakeUp(self._queues.name(lane), job_type) for lane, job_type in types_by_lane}, claimed_all=claimed_all
        )

    async def _parents(self, rows: Sequence[ClaimedRow]) -> dict[UUID, ParentResult]:
        """The results of the jobs that these jobs depend on."""
        parent_ids = {parent for row in rows for parent in row.depends_on or ()}
        results: dict[UUID, ParentResult] = {}
        for lane, ids in group_by_lane(parent_ids, lambda job_id: job_id).items():
            for job in await dependencies.parent_results(self._infra.db, lane, ids, self._infra.retention_now()):
                results[job.id] = ParentResult(job_id=job.id, state=job.state, result=raw_or_unset(job.result))
        return results
