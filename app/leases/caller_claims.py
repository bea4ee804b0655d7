"""Claims jobs for callers with a quota of leases, and for claims with an Idempotency-Key.

A claim with an Idempotency-Key can be repeated: the broker returns the leases of the first claim.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from uuid import UUID

import msgspec

from app.db.infrastructure import Infrastructure
from app.db.lanes import KEY_LANES, group_by_lane, lane_of_key
from app.db.pool import Executor, Transaction, retry_after_deadlock
from app.errors import RateLimited
from app.http.authorization import Access
from app.http.schema_types import RequestModel
from app.jobs.lease_tokens import lease_token
from app.jobs.rows import ClaimedRow
from app.leases import store
from app.leases.claim import ClaimService, claim_unlocked_lanes_first
from app.leases.rows import ClaimContext, ClaimParams, ClaimResult
from app.locks import store as locks
from app.queues.cache import Queue, QueueCache


class ClaimReceipt(RequestModel):
    """The claim secret and the jobs of a claim with an Idempotency-Key, stored with the key.

    A repeated claim needs nothing else to find the same leases: their tokens are computed from the
    secret.
    """

    secret: str
    ids: list[UUID]


_receipt = msgspec.json.Decoder(ClaimReceipt)


class _NothingClaimed(Exception):
    """Raised to roll back the transaction of a claim that found no job.

    An idle poll must write nothing.
    """


class CallerClaims:
    def __init__(self, *, infra: Infrastructure, queues: QueueCache, claims: ClaimService) -> None:
        self._infra = infra
        self._queues = queues
        self._claims = claims

    async def claim_for_caller(
        self, queues: Sequence[Queue], limit: int, params: ClaimParams, context: ClaimContext
    ) -> ClaimResult:
        """Claims jobs, or returns the leases of the first claim with the same Idempotency-Key.

        If the caller has a quota, its leases are counted and the jobs are claimed under its caller
        lock. So two concurrent calls cannot both take the last lease of the quota.
        """
        if context.key is None:
            return await claim_unlocked_lanes_first(
                queues, partial(self._claim_within_quota, queues, limit, params, context)
            )
        result = await claim_unlocked_lanes_first(queues, partial(self._claim_with_key, queues, limit, params, context))
        return result._replace(rows=await self._visible_rows(result.rows, context.access))

    async def _claim_within_quota(
        self, queues: Sequence[Queue], limit: int, params: ClaimParams, context: ClaimContext, *, wait_for_lock: bool
    ) -> ClaimResult:
        async def claim(transaction: Transaction) -> ClaimResult:
            allowed = await self._apply_quota(transaction, limit, context)
            return await self._claims.claim_in_transaction(
                transaction, queues, allowed, params, wait_for_lock=wait_for_lock
            )

        return await self._commit_claim(claim)

    async def _commit_claim(self, claim: Callable[[Transaction], Awaitable[ClaimResult]]) -> ClaimResult:
        """Runs the claim in a transaction.

        After the commit, updates the metrics and publishes the leased jobs. A repeated claim has
        leased nothing new.
        """
        result = await self._run_in_transaction(claim)
        if result.repeated:
            self._infra.metrics.replayed.inc(len(result.rows))
        else:
            self._claims.record_claimed(result.rows)
        return result

    @retry_after_deadlock
    async def _run_in_transaction(self, claim: Callable[[Transaction], Awaitable[ClaimResult]]) -> ClaimResult:
        result = ClaimResult([])
        with suppress(_NothingClaimed):
            async with self._infra.db.transaction() as transaction:
                result = await claim(transaction)
                if not result.rows and not result.repeated:
                    raise _NothingClaimed
        return result

    async def _apply_quota(self, db: Executor, limit: int, context: ClaimContext) -> int:
        """Takes the caller lock, and returns how many of `limit` jobs the quota allows.

        Without a quota, takes no lock and returns `limit`. If the quota is used up, raises
        RateLimited, unless the request has settled jobs.
        """
        if context.access.max_leases is None:
            return limit
        await locks.lock_caller(db, context.access.caller)
        count = await store.count_leases_of_caller(db, context.access.caller)
        if count >= context.access.max_leases and not context.has_settled:
            raise RateLimited(
                f"caller {context.access.caller} holds {count} leases; its quota allows {context.access.max_leases}",
                retry_after=1,
            )
        return min(limit, context.access.max_leases - count)

    async def _claim_with_key(
        self, queues: Sequence[Queue], limit: int, params: ClaimParams, context: ClaimContext, *, wait_for_lock: bool
    ) -> ClaimResult:
        """Claims jobs, or returns the leases of the first claim with the same key.

        This is layer 3 of the four that long_poll.py lists.

        - The row of the key stays locked until the commit, so calls with the same key run one after
          the other.
        - All statements of a call use the same connection. If each call needed a second connection,
          calls that together hold all connections could wait for each other.
        - A claim that finds no job does not store its key.
        """
        key = context.digest
        lane = lane_of_key(key, KEY_LANES)
        expires_at = self._infra.now() + timedelta(seconds=self._infra.settings.idempotency_seconds)

        async def claim(transaction: Transaction) -> ClaimResult:
            stored = await locks.lock_claim_key(transaction, lane, key, expires_at)
            rows = await self._leases_of_receipt(transaction, _receipt.decode(stored)) if stored else None
            if rows is not None:
                return ClaimResult(rows, repeated=True)
            allowed = await self._apply_quota(transaction, limit, context)
            result = await self._claims.claim_in_transaction(
                transaction, queues, allowed, params, wait_for_lock=wait_for_lock
            )
            if result.rows:
                receipt = ClaimReceipt(secret=params.secret, ids=[row.id for row in result.rows])
                await locks.write_key_response(transaction, lane, key, msgspec.json.encode(receipt).decode())
            return result

        return await self._commit_claim(claim)

    async def repeat(self, context: ClaimContext) -> list[ClaimedRow]:
        """Returns the leases of the first claim with the same key, and claims nothing new.

        Called for a claim that is refused, because the broker drains or is full, or the worker's
        directive is `drain` or `stop`. The worker may be repeating the claim because the first
        response was lost.
        """
        key = context.digest
        stored = await locks.stored_response(self._infra.db, lane_of_key(key, KEY_LANES), key)
        rows = await self._leases_of_receipt(self._infra.db, _receipt.decode(stored)) if stored else None
        self._infra.metrics.replayed.inc(len(rows or []))
        return await self._visible_rows(rows or [], context.access)

    async def _leases_of_receipt(self, db: Executor, receipt: ClaimReceipt) -> list[ClaimedRow] | None:
        """Returns the leases of the first claim that are still live, in the order of that claim.

        - Returns an empty list if no lease is live, but the worker has settled at least one.
        - Returns None if no lease is live and none was settled, for example because all have
          expired. Then a claim with this key claims new jobs.
        """
        live: dict[UUID, ClaimedRow] = {}
        has_settled = False
        for lane, ids in group_by_lane(receipt.ids, lambda job_id: job_id).items():
            live |= {row.id: row for row in await store.leases_with_secret(db, lane, ids, receipt.secret)}
            records = await store.settlement_records(db, lane, ids, self._infra.retention_now())
            has_settled |= any(
                record.settled_as and record.lease_token == lease_token(receipt.secret, record.id)
                for record in records.values()
            )
        return [live[job_id] for job_id in receipt.ids if job_id in live] if live or has_settled else None

    async def _visible_rows(self, rows: list[ClaimedRow], access: Access) -> list[ClaimedRow]:
        """Removes the rows of queues that this API key cannot access.

        The first call may have used another API key of the same caller, which can access more
        queues. Another process may have served the first call, so this process may not have the
        queues in its cache and loads them.
        """
        await self._queues.load_lanes({row.lane for row in rows})
        return [row for row in rows if access.allows(self._queues.name_by_lane(row.lane))]
