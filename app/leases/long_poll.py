"""The long poll: look, sleep until there is something to look for, look again. And the layers that keep a claim from being lost."""

import math
import random
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from hashlib import md5
from typing import NamedTuple
from uuid import UUID

import msgspec

from app.db.infrastructure import Infrastructure
from app.db.lanes import KEY_LANES, by_lane, caller_lock_id, digest, lane_of_key
from app.db.pool import Executor, retry_after_deadlock
from app.dependencies import store as dependencies
from app.enqueue.defaults import lease_fault
from app.errors import Fault, RateLimited, refuse
from app.http.authorization import Access
from app.http.schema_types import UNSET, RequestModel, raw_or_unset, value_or
from app.leases import store
from app.leases.claim import ClaimResult, ClaimService, clipped, in_two_passes
from app.leases.retry_decision import LeaseEnd
from app.leases.schemas import ClaimAnswer, ClaimJobs, ParentResult
from app.leases.settle import SettlementService
from app.leases.store import ClaimedRow, ClaimParams
from app.leases.to_response import to_response
from app.locks import store as keys
from app.matching.pollers import Poller, PollerRegistry, WakeUp
from app.queues.cache import Queue, QueueCache
from app.server.client import Client
from app.workers.poll_history import PollHistory
from app.workers.registry import WorkerRegistry

BUSY_MS = 1000  # how long a refused poll should stay away
IDLE_MS = (
    500  # poll_after_ms of an empty claim that did not wait: otherwise the worker would claim again at once, forever
)
JITTER = 0.1  # polls that began together must not end together


class ClaimReceipt(RequestModel):
    """What a claim with a key handed out: enough to hand out the same again."""

    secret: str
    ids: list[UUID]


_receipt = msgspec.json.Decoder(ClaimReceipt)


class ClaimContext(NamedTuple):
    """Who claims: with which Idempotency-Key, and what its API key reaches. `told_off`: an error may be the answer, as there is nothing
    else to tell."""

    key: str | None
    access: Access
    raise_on_quota: bool

    @property
    def digest(self) -> UUID:
        return digest("claim", self.key or "", *filter(None, [self.access.caller]))


class _NothingClaimed(Exception):
    """Rolls back the transaction of a claim with a key."""


class LongPoll:
    def __init__(
        self,
        infra: Infrastructure,
        queues: QueueCache,
        waiting: PollerRegistry,
        settlements: SettlementService,
        workers: WorkerRegistry,
        poll_history: PollHistory,
        claims: ClaimService,
    ) -> None:
        self._infra = infra
        self._queues = queues
        self._waiting = waiting
        self._settlements = settlements
        self._workers = workers
        self._poll_history = poll_history
        self._claims = claims
        claims.on_rate = lambda queue: waiting.wake(queue, [None])
        claims.on_served = settlements.served

    async def claim(self, request: ClaimJobs, key: str | None, client: Client, access: Access) -> ClaimAnswer:
        names = list(dict.fromkeys(value_or(request.queues, ["default"])))
        self._check(request, names, access)
        worker_id = value_or(request.worker_id, None)
        self._workers.record_seen(worker_id, access.caller)
        settled = (
            await self._settlements.settle(request.settle, access, "/settle") if request.settle is not UNSET else []
        )
        patience = self._wait(request)
        wait = 0.0 if settled else patience
        types = value_or(request.job_types, None)
        poll = Poller(
            names,
            frozenset(types) if types is not None else None,
            worker_id,
            value_or(request.lease_seconds, None),
            takes_handed=value_or(request.max_jobs, 1) if key is None and access.max_leases is None else 0,
        )
        client.on_disconnect(poll.wake_up)
        self._waiting.park(poll)
        try:
            rows, retry_at, *_ = await self._poll(
                request, poll, wait, ClaimContext(key, access, raise_on_quota=not settled), client
            )
            away = 0 if rows else self._stay_away_ms(worker_id, retry_at, idle_ms=0 if patience else IDLE_MS)
        finally:
            self._waiting.leave(poll)
        parents = await self._parents(rows) if value_or(request.parent_results, False) else None
        names_of = {lane: self._queues.name(lane) for lane in {row.lane for row in rows}}
        return ClaimAnswer(
            jobs=[to_response(row, names_of[row.lane], parents) for row in rows],
            settled=settled,
            directive=self._workers.directive(worker_id),
            poll_after_ms=away,
            server_time=self._infra.now(),
        )

    def _check(self, request: ClaimJobs, names: Sequence[str], access: Access) -> None:
        settings = self._infra.settings
        for index, name in enumerate(names):
            access.check(name, f"/queues/{index}")
        many = value_or(request.max_jobs, 1) > settings.max_claim_jobs
        too_many = (
            Fault("/max_jobs", "invalid", f"max_jobs must be at most {settings.max_claim_jobs}") if many else None
        )
        refuse([too_many, lease_fault(request.lease_seconds, settings, "/lease_seconds")])

    def _wait(self, request: ClaimJobs) -> float:
        wait = min(value_or(request.wait_seconds, 0.0), self._infra.settings.max_wait_seconds)
        return wait * (1 - random.uniform(0, JITTER))

    def _stay_away_ms(self, worker_id: str | None, retry_at: datetime | None, *, idle_ms: int) -> int:
        """Not for longer than the longest wait: a worker that stays away hears no directive."""
        if not self._serves(worker_id):
            return BUSY_MS
        if retry_at is None:
            return idle_ms
        milliseconds = math.ceil((retry_at - self._infra.now()) / timedelta(milliseconds=1))
        return min(max(1, milliseconds), self._infra.settings.max_wait_seconds * 1000)

    def _serves(self, worker_id: str | None) -> bool:
        full = self._waiting.parked > self._infra.settings.max_parked_polls
        return not self._waiting.draining and not full and self._workers.directive(worker_id) == "run"

    async def _poll(
        self, request: ClaimJobs, poll: Poller, wait: float, by: ClaimContext, client: Client
    ) -> ClaimResult:
        """Layer 1: SQL runs only when there may be something, and only while the client is there."""
        until = time.monotonic() + wait
        retry_at: datetime | None = None
        while self._serves(poll.worker_id):
            poll.look()
            rows, retry_at = await self._look(request, poll, by, client)
            if rows is not None:
                self._took(poll, rows, value_or(request.max_jobs, 1))
                return ClaimResult(await self._delivered(rows, by.key, client))
            poll.nothing_found()
            left = until - time.monotonic()
            if left <= 0:
                break
            matched = await poll.sleep(left)
            if matched:
                return ClaimResult(await self._handed([*matched], by, client))
            if client.gone:
                self._infra.metrics.parked_left.inc()
                break
            await self._infra.versions.ensure_fresh()
            by.access.check_not_revoked()
        if by.key is not None and not self._serves(poll.worker_id):
            return ClaimResult(await self._handed_out_before(by))
        return ClaimResult([], retry_at)

    async def _look(
        self, request: ClaimJobs, poll: Poller, by: ClaimContext, client: Client
    ) -> tuple[list[ClaimedRow] | None, datetime | None]:
        """Jobs; or an empty list for a repeated claim whose leases have all ended; or None: nothing there, wait. And when a rate will
        have something to give."""
        params = ClaimParams(
            worker_id=poll.worker_id,
            secret=secrets.token_hex(16),
            lease_seconds=value_or(request.lease_seconds, None),
            default_lease_seconds=self._infra.settings.default_lease_seconds,
            max_bytes=self._infra.settings.max_batch_bytes,
            at_least_one=True,
            job_types=value_or(request.job_types, None),
            held_by=by.access.caller if by.access.max_leases is not None else None,
            client=client,
        )
        most = value_or(request.max_jobs, 1)
        self._poll_history.note(poll.queues, params.job_types)
        queues = await self._claims.queues(poll.queues)
        if by.key is None:
            take = await self._take(queues, most, params, by)
            return take.rows or None, take.retry_at if len(queues) == len(poll.queues) else None
        take = await in_two_passes(queues, lambda wait: self._take_with_key(queues, most, params, by, wait=wait))
        return await self._reached(take.rows, by.access) if take.rows or take.replayed else None, take.retry_at

    async def _handed(self, rows: list[ClaimedRow], by: ClaimContext, client: Client) -> list[ClaimedRow]:
        """Stored as ours. The key of the call may have ended while it waited."""
        self._claims.count(rows)
        if by.access.ended():
            await self._undo(rows)
        by.access.check_not_revoked()
        return await self._delivered(rows, None, client)

    async def _delivered(self, rows: list[ClaimedRow], key: str | None, client: Client) -> list[ClaimedRow]:
        """Layer 2: what nobody is there to take goes back at no cost. Never with a key: the worker will repeat the call, and
        undoing as well would put one job into two hands."""
        if not client.gone or key is not None or not rows:
            return rows
        await self._undo(rows)
        return []

    async def _undo(self, rows: Sequence[ClaimedRow]) -> None:
        await self._settlements.end([LeaseEnd(row.id, row.lease_token, "undo") for row in rows])
        self._infra.metrics.undone.inc(len(rows))

    async def _take(self, queues: Sequence[Queue], most: int, params: ClaimParams, by: ClaimContext) -> ClaimResult:
        """A caller with a quota counts its leases and takes more with its gate held: two calls at once cannot both use the last place."""
        if by.access.max_leases is None:
            return await in_two_passes(queues, lambda wait: self._claims.take(queues, most, params, wait=wait))
        return await in_two_passes(queues, lambda wait: self._take_within_quota(queues, most, params, by, wait=wait))

    @retry_after_deadlock
    async def _take_within_quota(
        self, queues: Sequence[Queue], most: int, params: ClaimParams, by: ClaimContext, *, wait: bool
    ) -> ClaimResult:
        take = ClaimResult([])
        with suppress(_NothingClaimed):
            async with self._infra.db.transaction() as transaction:
                allowed = await self._within_quota(transaction, most, by)
                take = await self._claims.take(queues, allowed, params, wait=wait, on=transaction)
                if not take.rows:
                    raise _NothingClaimed  # an idle poll writes nothing
        return take

    async def _within_quota(self, on: Executor, most: int, by: ClaimContext) -> int:
        if by.access.max_leases is None:
            return most
        await keys.lock_lane(on, caller_lock_id(by.access.caller))
        held = await store.count_leases_of_key(on, by.access.caller)
        if held >= by.access.max_leases and by.raise_on_quota:
            raise RateLimited(
                f"this key holds {held} leases, at most {by.access.max_leases} are allowed", retry_after=1
            )
        return min(most, by.access.max_leases - held)

    async def _handed_out_before(self, by: ClaimContext) -> list[ClaimedRow]:
        """Who hands out nothing more still tells a repeated claim what it had got: its worker may not ask anybody else."""
        name = by.digest
        answer = await keys.stored_response(self._infra.db, lane_of_key(name, KEY_LANES), name)
        rows = await self._replayed(self._infra.db, _receipt.decode(answer)) if answer else None
        return await self._reached(rows or [], by.access)

    async def _reached(self, rows: list[ClaimedRow], access: Access) -> list[ClaimedRow]:
        """The first call may have been another process's, or made with another key of the same caller that reaches more."""
        await self._queues.load({row.lane for row in rows})
        return [row for row in rows if access.allows(self._queues.name(row.lane))]

    @retry_after_deadlock
    async def _take_with_key(
        self, queues: Sequence[Queue], most: int, params: ClaimParams, by: ClaimContext, *, wait: bool
    ) -> ClaimResult:
        """Layer 3: the same key gets the same leases. The row of the key stays locked until we commit, so replays take turns.
        All is asked of this one connection: a second one could be held by somebody who waits for ours."""
        name = by.digest
        lane = lane_of_key(name, KEY_LANES)
        expires_at = self._infra.now() + timedelta(seconds=self._infra.settings.idempotency_seconds)
        take = ClaimResult([])
        with suppress(_NothingClaimed):
            async with self._infra.db.transaction() as transaction:
                answer = await keys.lock_claim_key(transaction, lane, name, expires_at)
                again = await self._replayed(transaction, _receipt.decode(answer)) if answer else None
                if again is not None:
                    return ClaimResult(again, replayed=True)
                allowed = await self._within_quota(transaction, most, by)
                take = await self._claims.take(queues, allowed, params, wait=wait, on=transaction)
                if not take.rows:
                    raise _NothingClaimed  # a key that got nothing need not be remembered: an idle poll writes nothing
                receipt = ClaimReceipt(secret=params.secret, ids=[row.id for row in take.rows])
                await keys.write_claim_key(transaction, lane, name, msgspec.json.encode(receipt).decode())
        return take

    async def _replayed(self, on: Executor, receipt: ClaimReceipt) -> list[ClaimedRow] | None:
        """The leases that still live, in the same order; none if some were settled; None (claim anew) if all have expired."""
        live: dict[UUID, ClaimedRow] = {}
        settled = False
        for lane, ids in by_lane(receipt.ids, lambda job_id: job_id).items():
            live |= {row.id: row for row in await store.leases_with_secret(on, lane, ids, receipt.secret)}
            traces = await store.settlement_records(on, lane, ids, self._infra.retention_now())
            settled |= any(
                trace.settled_as and trace.lease_token == _token(receipt.secret, trace.id) for trace in traces.values()
            )
        self._infra.metrics.replayed.inc(len(live))
        return [live[job_id] for job_id in receipt.ids if job_id in live] if live or settled else None

    def _took(self, poll: Poller, rows: Sequence[ClaimedRow], most: int) -> None:
        """A full batch, or a full answer, may have left more behind."""
        all_there_were = len(rows) < most and not clipped(rows, most, self._infra.settings.max_batch_bytes)
        kinds = {(row.lane, row.job_type) for row in rows}
        poll.claimed(
            {WakeUp(self._queues.name(lane), job_type) for lane, job_type in kinds}, all_there_were=all_there_were
        )

    async def _parents(self, rows: Sequence[ClaimedRow]) -> dict[UUID, ParentResult]:
        """What has become of the jobs that these waited for."""
        ids = {parent for row in rows for parent in row.depends_on or ()}
        to_response: dict[UUID, ParentResult] = {}
        for lane, some in by_lane(ids, lambda job_id: job_id).items():
            for job in await dependencies.parent_results(self._infra.db, lane, some, self._infra.retention_now()):
                to_response[job.id] = ParentResult(job_id=job.id, state=job.state, result=raw_or_unset(job.result))
        return to_response


def _token(secret: str, job_id: UUID) -> UUID:
    """As the claim statement makes it."""
    return UUID(md5(f"{secret}{job_id}".encode(), usedforsecurity=False).hexdigest())
