"""Runs keys.sql."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from asyncpg import LockNotAvailableError, Record

from app.db.pool import Executor, to_columns
from app.db.queries import load_queries
from app.errors import IdempotencyKeyInUse

SQL = load_queries(__file__)


class UniqueRow(NamedTuple):
    """Who has a unique key. `answer`: for a window in time, or for the life of the job."""

    digest: UUID
    job_id: UUID | None
    answer: str | None
    expires_at: datetime


class ExpiredKey(NamedTuple):
    lane: int
    digest: UUID
    job_id: UUID | None


async def acquire_idempotency_key(
    on: Executor, lane: int, digest: UUID, *, fingerprint: UUID, answer: str, expires_at: datetime, kept_at: datetime
) -> bool:
    """Acquires the key; a row that expired by `kept_at` is replaced."""
    try:
        return (
            await on.value(SQL.acquire_idempotency_key, lane, digest, fingerprint, answer, expires_at, kept_at)
            is not None
        )
    except LockNotAvailableError:
        raise IdempotencyKeyInUse("the first call with this key has not ended yet", retry_after=1) from None


async def read_idempotency_key(on: Executor, lane: int, digest: UUID) -> Record:
    row = await on.row(SQL.read_idempotency_key, lane, digest)
    assert row is not None, "the key was there a moment ago, and nobody removes living ones"
    return row


async def stored_response(on: Executor, lane: int, digest: UUID) -> str | None:
    """What a key remembers, if anything; nobody is held up by asking."""
    answer: str | None = await on.value(SQL.stored_response, lane, digest)
    return answer


async def lock_claim_key(on: Executor, lane: int, digest: UUID, expires_at: datetime) -> str | None:
    answer: str | None = await on.value(SQL.lock_claim_key, lane, digest, expires_at)
    return answer


async def write_claim_key(on: Executor, lane: int, digest: UUID, answer: str) -> None:
    await on.rows(SQL.write_claim_key, lane, digest, answer)


async def lock_unique_keys(on: Executor, lane: int, digests: Sequence[UUID], expires_at: datetime) -> list[UniqueRow]:
    return [UniqueRow(*row) for row in await on.rows(SQL.lock_unique_keys, lane, digests, expires_at)]


async def assign_unique_keys(on: Executor, lane: int, keys: Sequence[tuple[UUID, UUID, str, datetime]]) -> None:
    """Keys are (digest, job_id, held_for, expires_at)."""
    await on.rows(SQL.assign_unique_keys, lane, *to_columns(keys))


async def expired_keys(on: Executor, now: datetime, limit: int) -> list[ExpiredKey]:
    return [ExpiredKey(*row) for row in await on.rows(SQL.expired_keys, now, limit)]


async def delete_keys(on: Executor, lane: int, digests: Sequence[UUID], now: datetime) -> None:
    await on.rows(SQL.delete_keys, lane, digests, now)


async def extend_keys(on: Executor, lane: int, digests: Sequence[UUID], now: datetime, until: datetime) -> None:
    await on.rows(SQL.extend_keys, lane, digests, now, until)


async def lock_lane(on: Executor, lane: int, *, wait: bool = True) -> bool:
    """Locks the lane until the transaction ends; creates the row on first use. Without `wait`, returns False if another transaction has
    locked it."""
    if await on.row(SQL.lock_lane if wait else SQL.try_gate, lane) is not None:
        return True
    if not wait and await on.value(SQL.gate_exists, lane):
        return False
    await on.rows(SQL.make_gate, lane)
    await on.row(SQL.lock_lane, lane)
    return True
