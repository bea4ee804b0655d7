"""Runs dead_letters.sql."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from app.db.pool import Runs, columns
from app.db.sql import statements

SQL = statements(__file__)


class ReplayedRow(NamedTuple):
    id: UUID
    state: str
    run_at: datetime
    job_type: str
    group_key: str | None


class TakenRow(NamedTuple):
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
    on: Runs,
    lane: int,
    letters: Sequence[tuple[UUID, str, datetime, str | None]],
    *,
    priority: int | None,
    max_attempts: int | None,
    parks: Sequence[str] | None,
) -> list[ReplayedRow]:
    """Letters are (id, state, run_at, payload or None), in the order of their ids."""
    return [ReplayedRow(*row) for row in await on.rows(SQL.replay, lane, *columns(letters), priority, max_attempts, parks)]


async def payloads(on: Runs, lane: int, ids: Sequence[UUID]) -> dict[UUID, str]:
    return {row["id"]: row["payload"] for row in await on.rows(SQL.payloads, lane, ids)}


async def take_out(on: Runs, lane: int, ids: Sequence[UUID]) -> list[TakenRow]:
    return [TakenRow(*row) for row in await on.rows(SQL.take_out, lane, ids)]


async def purge(on: Runs, lane: int, ids: Sequence[UUID]) -> int:
    return len(await on.rows(SQL.purge, lane, ids))


async def too_old(on: Runs, before: datetime, limit: int) -> list[UUID]:
    return [row["id"] for row in await on.rows(SQL.too_old, before, limit)]
