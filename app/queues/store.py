"""Runs queues.sql."""

from datetime import datetime
from typing import NamedTuple

from app.db.pool import Runs
from app.db.sql import statements

SQL = statements(__file__)


class QueueRow(NamedTuple):
    id: int
    name: str
    lanes: int
    created_at: datetime
    config: str
    paused_at: datetime | None
    paused_reason: str | None
    deleted_at: datetime | None


async def all_queues(on: Runs) -> list[QueueRow]:
    return [QueueRow(*row) for row in await on.rows(SQL.all_queues)]


async def add_queue(on: Runs, name: str, most: int) -> None:
    await on.rows(SQL.add_queue, name, most)
