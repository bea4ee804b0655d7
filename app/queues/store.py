"""Runs queues.sql."""

from dataclasses import dataclass
from datetime import datetime

from app.db.pool import Database
from app.db.sql import statements

SQL = statements(__file__)


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue as the process caches it: with the number and the lanes that nobody outside sees."""

    id: int
    name: str
    lanes: int
    created_at: datetime


async def all_queues(db: Database) -> list[Queue]:
    return [Queue(*row) for row in await db.rows(SQL.all_queues)]


async def add_queue(db: Database, name: str, most: int) -> None:
    await db.rows(SQL.add_queue, name, most)
