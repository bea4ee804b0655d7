"""Runs dead_letters.sql."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from app.db.pool import Executor, to_columns
from app.db.queries import load_queries
from app.events import MovedJobRow

SQL = load_queries(__file__)


class RemovedRow(NamedTuple):
    id: UUID
    job_type: str
    group_key: str | None
    lease_seconds: int | None
    retry: str | None
    priority: int
    max_attempts: int
    tags: str | None
    metadata: str | None
    traceparent: str | None
    tracestate: str | None
    payload: str
    timeout_seconds: int | None


async def replay(
    db: Executor,
    lane: int,
    letters: Sequence[tuple[UUID, str, datetime, str | None]],
    *,
    priority: int | None,
    max_attempts: int | None,
    held_groups: Sequence[str] | None,
) -> list[MovedJobRow]:
    """Replays dead letters, given as (id, state, run_at, payload or None), sorted by id."""
    rows = await db.rows(SQL.replay.sql, lane, *to_columns(letters), priority, max_attempts, held_groups)
    return sorted(MovedJobRow(*row) for row in rows)


async def payloads(db: Executor, lane: int, ids: Sequence[UUID]) -> dict[UUID, str]:
    return {row["id"]: row["payload"] for row in await db.rows(SQL.payloads.sql, lane, ids)}


async def remove(db: Executor, lane: int, ids: Sequence[UUID]) -> list[RemovedRow]:
    return [RemovedRow(*row) for row in await db.rows(SQL.remove.sql, lane, ids)]


async def purge(db: Executor, lane: int, ids: Sequence[UUID]) -> int:
    return len(await db.rows(SQL.purge.sql, lane, ids))


async def expired_dead_letters(db: Executor, before: datetime, limit: int) -> list[UUID]:
    return [row["id"] for row in await db.rows(SQL.expired_dead_letters.sql, before, limit)]
