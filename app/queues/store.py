"""Runs queues.sql, and turns its rows into what is told of a queue."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from app.db.pool import Executor
from app.db.queries import load_queries
from app.http.schema_types import unset_if_none
from app.queues.schemas import Queue, QueueConfig

SQL = load_queries(__file__)

MAX_QUEUE_ID = 65_535


class _Stored(QueueConfig, forbid_unknown_fields=False):
    """A newer release beside this one may have written what this one does not know."""


_config = msgspec.json.Decoder(_Stored)


class QueueRow(NamedTuple):
    id: int
    name: str
    lanes: int
    group_lanes: int
    created_at: datetime
    config: str
    paused_at: datetime | None
    paused_reason: str | None
    deleted_at: datetime | None

    @classmethod
    def new(cls, number: int, name: str, now: datetime) -> "QueueRow":
        return cls(
            number,
            name,
            lanes=1,
            group_lanes=1,
            created_at=now,
            config="{}",
            paused_at=None,
            paused_reason=None,
            deleted_at=None,
        )

    def rules(self) -> QueueConfig:
        """Two of them have columns of their own: what they were is needed when they change."""
        return msgspec.structs.replace(_config.decode(self.config), lanes=self.lanes, paused=self.paused_at is not None)

    def to_response(self) -> Queue:
        return Queue(
            **msgspec.structs.asdict(self.rules()),
            name=self.name,
            created_at=self.created_at,
            paused_at=unset_if_none(self.paused_at),
            paused_reason=unset_if_none(self.paused_reason),
        )


async def all_queues(on: Executor) -> list[QueueRow]:
    return [QueueRow(*row) for row in await on.rows(SQL.all_queues)]


async def list_queues(on: Executor, after: str, limit: int, names: str | None) -> list[QueueRow]:
    """`names`: a regular expression."""
    return [QueueRow(*row) for row in await on.rows(SQL.list_queues, after, limit, names)]


async def get_queue(on: Executor, name: str) -> QueueRow | None:
    row = await on.row(SQL.get_queue, name)
    return QueueRow(*row) if row else None


async def lock_queue(on: Executor, name: str) -> QueueRow | None:
    row = await on.row(SQL.lock_queue, name)
    return QueueRow(*row) if row else None


async def add_queues(on: Executor, queues: Sequence[tuple[int, str]], limit: int) -> dict[str, bool]:
    """`queues` are (number, name), and are locked in this order. Returns whether each was deleted before, without those that another
    process has created."""
    rows = await on.rows(SQL.add_queues, [number for number, _ in queues], [name for _, name in queues], limit)
    return {row["name"]: row["undeleted"] for row in rows}


async def next_queue_id(on: Executor) -> int:
    number: int = await on.value(SQL.next_queue_id)
    return min(number, MAX_QUEUE_ID)


async def write_queue(on: Executor, row: QueueRow) -> None:
    rules = (row.lanes, row.group_lanes, row.config, row.paused_at, row.paused_reason, row.deleted_at)
    await on.rows(SQL.write_queue, row.id, *rules)


async def is_used(on: Executor, queue_id: int) -> bool:
    used: bool = await on.value(SQL.is_used, queue_id)
    return used


async def revive_used(on: Executor) -> list[str]:
    return [row["name"] for row in await on.rows(SQL.revive_used)]


async def reopen_lanes(on: Executor) -> list[str]:
    return [row["name"] for row in await on.rows(SQL.reopen_lanes)]


async def spread_groups(on: Executor) -> list[str]:
    return [row["name"] for row in await on.rows(SQL.spread_groups)]
