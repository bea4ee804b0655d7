"""Reads, replays and removes dead letters: the functions run the statements of dead_letters.sql."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from app.db.pool import Executor
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


class ReplayParams(NamedTuple):
    """A dead letter to replay. `payload` is the new payload, None if it is unchanged."""

    id: UUID
    state: str
    run_at: datetime
    payload: str | None


async def replay(
    db: Executor,
    lane: int,
    params: Sequence[ReplayParams],
    *,
    priority: int | None,
    max_attempts: int | None,
    held_groups: Sequence[str] | None,
) -> list[MovedJobRow]:
    """Replays dead letters, given in the order of their ids. Returns the live jobs."""
    rows = await db.rows(
        *SQL.replay.bind(params, lane=lane, priority=priority, max_attempts=max_attempts, held_groups=held_groups)
    )
    return sorted(MovedJobRow(*row) for row in rows)


async def payloads(db: Executor, lane: int, ids: Sequence[UUID]) -> dict[UUID, str]:
    return {row["id"]: row["payload"] for row in await db.rows(*SQL.payloads(lane=lane, ids=ids))}


async def remove(db: Executor, lane: int, ids: Sequence[UUID]) -> list[RemovedRow]:
    return [RemovedRow(*row) for row in await db.rows(*SQL.remove(lane=lane, ids=ids))]


async def purge(db: Executor, lane: int, ids: Sequence[UUID]) -> int:
    return len(await db.rows(*SQL.purge(lane=lane, ids=ids)))


async def dead_letters_past_retention(db: Executor, before: datetime, limit: int) -> list[UUID]:
    return [row["id"] for row in await db.rows(*SQL.dead_letters_past_retention(before=before, limit=limit))]
