"""Locks and writes deduplication keys, and acquires lane, queue and caller locks.

The functions run the statements of locks.sql.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from asyncpg import LockNotAvailableError, Record

from app.db.lanes import caller_lock_id
from app.db.pool import Executor
from app.db.queries import load_queries
from app.errors import IdempotencyKeyInUse

SQL = load_queries(__file__)


class UniqueRow(NamedTuple):
    """A unique key, and the job that got the key last. `job_id` is None if no job has had the key.

    The column `response` says for how long the job has the key: `window` (until `expires_at`) or
    `life` (while the job waits or runs). app/enqueue/uniqueness.py decides whether the job still
    has the key.
    """

    digest: UUID
    job_id: UUID | None
    response: str | None
    expires_at: datetime


class UniqueKeyParams(NamedTuple):
    """A unique key, and the job that gets the key.

    `held_for` is stored in the column `response` (see UniqueRow).
    """

    digest: UUID
    job_id: UUID
    held_for: str
    expires_at: datetime


class ExpiredKey(NamedTuple):
    lane: int
    digest: UUID
    job_id: UUID | None


async def acquire_idempotency_key(
    db: Executor,
    lane: int,
    digest: UUID,
    *,
    body_digest: UUID,
    response: str,
    expires_at: datetime,
    retention_now: datetime,
) -> bool:
    """Acquires an idempotency key. Returns False if the key was used before.

    A key that expires at or before `retention_now` counts as unused. Raises IdempotencyKeyInUse if
    the first call with the key is still running.
    """
    try:
        acquired = await db.value(
            *SQL.acquire_idempotency_key(
                lane=lane,
                digest=digest,
                body_digest=body_digest,
                response=response,
                expires_at=expires_at,
                retention_now=retention_now,
            )
        )
    except LockNotAvailableError:
        raise IdempotencyKeyInUse("the first call with this key is still running", retry_after=1) from None
    return acquired is not None


async def read_idempotency_key(db: Executor, lane: int, digest: UUID) -> Record:
    """Returns `body_digest` and `response` of a key that could not be acquired."""
    row = await db.row(*SQL.read_idempotency_key(lane=lane, digest=digest))
    assert row is not None, "the key was just found, and only expired keys are deleted"
    return row


async def stored_response(db: Executor, lane: int, digest: UUID) -> str | None:
    """Returns the response that is stored with a key, or None if there is none. Takes no lock."""
    response: str | None = await db.value(*SQL.stored_response(lane=lane, digest=digest))
    return response


async def lock_claim_key(db: Executor, lane: int, digest: UUID, expires_at: datetime) -> str | None:
    """Locks the key of a claim until the transaction ends.

    Returns the claim receipt of an earlier claim with this key, or None if there was none.
    """
    response: str | None = await db.value(*SQL.lock_claim_key(lane=lane, digest=digest, expires_at=expires_at))
    return response


async def write_key_response(db: Executor, lane: int, digest: UUID, response: str) -> None:
    await db.rows(*SQL.write_key_response(lane=lane, digest=digest, response=response))


async def lock_unique_keys(db: Executor, lane: int, digests: Sequence[UUID], expires_at: datetime) -> list[UniqueRow]:
    rows = await db.rows(*SQL.lock_unique_keys(lane=lane, digests=digests, expires_at=expires_at))
    return [UniqueRow(*row) for row in rows]


async def assign_unique_keys(db: Executor, lane: int, keys: Sequence[UniqueKeyParams]) -> None:
    await db.rows(*SQL.assign_unique_keys.bind(keys, lane=lane))


async def expired_keys(db: Executor, now: datetime, limit: int) -> list[ExpiredKey]:
    return [ExpiredKey(*row) for row in await db.rows(*SQL.expired_keys(now=now, limit=limit))]


async def delete_keys(db: Executor, lane: int, digests: Sequence[UUID], now: datetime) -> None:
    await db.rows(*SQL.delete_keys(lane=lane, digests=digests, now=now))


async def extend_keys(db: Executor, lane: int, digests: Sequence[UUID], now: datetime, until: datetime) -> None:
    await db.rows(*SQL.extend_keys(lane=lane, digests=digests, now=now, until=until))


async def lock_lane(db: Executor, lane: int, *, wait: bool = True) -> bool:
    """Acquires a lane lock, queue lock or caller lock until the transaction ends. Returns True.

    Creates the row of the lock on first use. Without `wait`, returns False if another transaction
    holds the lock.
    """
    lock = SQL.lock_lane if wait else SQL.try_lock_lane
    if await db.row(*lock(lane=lane)) is not None:
        return True
    if not wait and await db.value(*SQL.lane_lock_exists(lane=lane)):
        return False
    await db.rows(*SQL.create_lane_lock(lane=lane))
    await db.row(*SQL.lock_lane(lane=lane))
    return True


async def lock_caller(db: Executor, caller: str) -> None:
    """Acquires a caller lock until the transaction ends.

    The lock makes counting the leases of the caller and claiming atomic.
    """
    await lock_lane(db, caller_lock_id(caller))
