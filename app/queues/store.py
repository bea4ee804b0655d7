"""Reads and writes queues: the functions run the statements of queues.sql."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from app.db.pool import Executor
from app.db.queries import load_queries
from app.http.schema_types import unset_if_none
from app.queues.schemas import Queue, QueueConfig

SQL = load_queries(__file__)


class _Stored(QueueConfig, forbid_unknown_fields=False):
    """The stored configuration.

    Ignores unknown members, because a newer release may run beside this one and write them.
    """


_config = msgspec.json.Decoder(_Stored)


class QueueRow(NamedTuple):
    id: int
    name: str
    lanes: int
    group_lanes: int  # the lanes that groups are spread over; behind `lanes` until `spread_groups` runs
    created_at: datetime
    config: str
    paused_at: datetime | None
    paused_reason: str | None
    deleted_at: datetime | None

    @classmethod
    def new(cls, queue_id: int, name: str, now: datetime) -> "QueueRow":
        return cls(
            queue_id,
            name,
            lanes=1,
            group_lanes=1,
            created_at=now,
            config="{}",
            paused_at=None,
            paused_reason=None,
            deleted_at=None,
        )

    def read_config(self) -> QueueConfig:
        """Decodes the configuration. Adds `lanes` and `paused`, which have columns of their own."""
        return msgspec.structs.replace(_config.decode(self.config), lanes=self.lanes, paused=self.paused_at is not None)

    def to_response(self) -> Queue:
        return Queue(
            **msgspec.structs.asdict(self.read_config()),
            name=self.name,
            created_at=self.created_at,
            paused_at=unset_if_none(self.paused_at),
            paused_reason=unset_if_none(self.paused_reason),
        )


class NewQueue(NamedTuple):
    id: int
    name: str


class QueueTotals(NamedTuple):
    """The number of all queues, and of those that are not deleted. Also has the ids that new queues
    may have, from `next_id` to `last_id`."""

    all: int
    not_deleted: int
    next_id: int
    last_id: int


async def queues_after(db: Executor, after: int, limit: int) -> list[QueueRow]:
    """Returns the next queues after the id `after`, including deleted ones, by id."""
    return [QueueRow(*row) for row in await db.rows(*SQL.queues_after(after=after, limit=limit))]


async def queues_named(db: Executor, names: Sequence[str]) -> list[QueueRow]:
    return [QueueRow(*row) for row in await db.rows(*SQL.queues_named(names=names))]


async def queues_with_ids(db: Executor, ids: Sequence[int]) -> list[QueueRow]:
    return [QueueRow(*row) for row in await db.rows(*SQL.queues_with_ids(ids=ids))]


async def queue_totals(db: Executor) -> QueueTotals:
    row = await db.row(*SQL.queue_totals())
    assert row is not None, "an aggregate without GROUP BY has one row"
    return QueueTotals(*row)


async def list_queues(db: Executor, after: str, limit: int, name_regex: str | None) -> list[QueueRow]:
    """Lists the queues that are not deleted, sorted by name, beginning after the name `after`. If
    `name_regex` is given, lists only queues whose names match it."""
    rows = await db.rows(*SQL.list_queues(after=after, limit=limit, name_regex=name_regex))
    return [QueueRow(*row) for row in rows]


async def get_queue(db: Executor, name: str) -> QueueRow | None:
    row = await db.row(*SQL.get_queue(name=name))
    return QueueRow(*row) if row else None


async def lock_queue(db: Executor, name: str) -> QueueRow | None:
    row = await db.row(*SQL.lock_queue(name=name))
    return QueueRow(*row) if row else None


async def add_queues(db: Executor, queues: Sequence[NewQueue], max_queues: int) -> dict[str, bool]:
    """Inserts or undeletes queues, and locks their rows, in the given order.

    Returns, by name, whether each queue was undeleted. Leaves out queues that another process has
    created in the meantime. Inserts nothing if there would be more than `max_queues` queues.
    """
    ids, names = [queue.id for queue in queues], [queue.name for queue in queues]
    rows = await db.rows(*SQL.add_queues(ids=ids, names=names, max_queues=max_queues))
    return {row["name"]: row["undeleted"] for row in rows}


async def next_queue_id(db: Executor) -> int | None:
    """Returns the next id, or None if all ids are used."""
    queue_id: int | None = await db.value(*SQL.next_queue_id())
    return queue_id


async def write_queue(db: Executor, row: QueueRow) -> None:
    await db.rows(
        *SQL.write_queue(
            id=row.id,
            lanes=row.lanes,
            group_lanes=row.group_lanes,
            config=row.config,
            paused_at=row.paused_at,
            paused_reason=row.paused_reason,
            deleted_at=row.deleted_at,
        )
    )


async def has_jobs(db: Executor, queue_id: int) -> bool:
    result: bool = await db.value(*SQL.has_jobs(id=queue_id))
    return result


async def unclaimed_lanes(db: Executor) -> list[int]:
    return [row["lane"] for row in await db.rows(*SQL.unclaimed_lanes())]


async def reopen_lanes(db: Executor, lanes: Mapping[int, int]) -> list[str]:
    """Undeletes queues, and adds lanes to them. `lanes` maps the id of a queue to the number of
    lanes that it needs."""
    ids, counts = list(lanes), list(lanes.values())
    return [row["name"] for row in await db.rows(*SQL.reopen_lanes(ids=ids, lanes=counts))]


async def queues_with_new_lanes(db: Executor) -> list[int]:
    return [row["id"] for row in await db.rows(*SQL.queues_with_new_lanes())]


async def has_groups(db: Executor, queue_id: int) -> bool:
    found: bool = await db.value(*SQL.has_groups(id=queue_id))
    return found


async def spread_groups(db: Executor, ids: Sequence[int]) -> list[str]:
    """Spreads the groups of queues over their current numbers of lanes."""
    return [row["name"] for row in await db.rows(*SQL.spread_groups(ids=ids))]
