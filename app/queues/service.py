"""Configures, pauses, resumes and deletes queues.

Every change locks the row of the queue. The change is in effect in this process when the call
returns, and in other processes within 250 ms.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TypeVar

import msgspec
from asyncpg import UniqueViolationError

from app.db.infrastructure import Infrastructure
from app.db.lanes import LANES_PER_QUEUE, queue_id_of
from app.db.pool import Executor, retry_after_deadlock
from app.errors import Fault, NotFound, QueueLimit, QueueNotEmpty, raise_for_faults
from app.http.authorization import Access
from app.http.member_rules import rule_faults
from app.http.pagination import EncodedPage, PageParams, encode_page
from app.http.schema_types import UNSET, UnsetType, value_or
from app.log import log
from app.queues import store
from app.queues.creator import no_id_left
from app.queues.schemas import Queue, QueueConfig
from app.queues.store import NewQueue, QueueRow
from app.settings import Settings

MAX_TRIES = 20  # to create a queue: another process may use the chosen id first

S = TypeVar("S", bound=msgspec.Struct)
LockRow = Callable[[Executor, str], Awaitable[QueueRow]]
Change = Callable[[Executor, QueueRow], Awaitable[QueueRow]]


class QueueService:
    def __init__(self, *, infra: Infrastructure) -> None:
        self._infra = infra

    async def list_page(self, page: PageParams, access: Access) -> EncodedPage[Queue]:
        rows = await store.list_queues(
            self._infra.read_connections, page.after("name"), page.limit + 1, access.sql_regex
        )
        return await encode_page(
            rows,
            QueueRow.to_response,
            lambda queue: {"name": queue.name},
            limit=page.limit,
            max_bytes=self._infra.settings.max_list_bytes,
        )

    async def get(self, name: str) -> Queue:
        return _existing_row(await store.get_queue(self._infra.db, name), name).to_response()

    async def put(self, name: str, config: QueueConfig, caller: str, faults: Sequence[Fault] = ()) -> Queue:
        """Replaces the configuration of a queue.

        Raises one ValidationFailed for `faults`, which the route has found, and for the faults that
        this method finds. Creates a missing queue in the same transaction: a rejected configuration
        creates no queue.
        """

        async def replace(db: Executor, row: QueueRow) -> QueueRow:
            return await self._apply_config(db, row, config, config, faults)

        for _ in range(MAX_TRIES):
            with suppress(UniqueViolationError):
                _, after = await self._change(name, replace, self._lock_or_create)
                log.info("queue configured", queue=name, caller=caller)
                return after.to_response()
        raise QueueLimit("the queue could not be created: other processes are creating queues, too", retry_after=1)

    async def update(self, name: str, config: QueueConfig, caller: str, faults: Sequence[Fault] = ()) -> Queue:
        """Changes the members of the configuration that are set in `config`.

        Raises one ValidationFailed for `faults`, which the route has found, and for the faults that
        this method finds.
        """

        async def merge(db: Executor, row: QueueRow) -> QueueRow:
            return await self._apply_config(db, row, merge_config(row.read_config(), config), config, faults)

        _, after = await self._change(name, merge, self._lock)
        log.info("queue configured", queue=name, caller=caller)
        return after.to_response()

    async def pause(self, name: str, reason: str | None, caller: str) -> Queue:
        async def pause(_: Executor, row: QueueRow) -> QueueRow:
            return pause_row(row, reason, self._infra.now())

        _, after = await self._change(name, pause, self._lock)
        log.info("queue paused", queue=name, reason=after.paused_reason, caller=caller)
        return after.to_response()

    async def resume(self, name: str, caller: str) -> Queue:
        async def resume(_: Executor, row: QueueRow) -> QueueRow:
            return row._replace(paused_at=None, paused_reason=None)

        _, after = await self._change(name, resume, self._lock)
        log.info("queue resumed", queue=name, caller=caller)
        return after.to_response()

    async def delete(self, name: str, caller: str) -> Queue:
        """Marks the queue as deleted and returns its last state.

        Keeps the row and the number of lanes, because the lanes still have finished jobs.
        """

        async def delete(db: Executor, row: QueueRow) -> QueueRow:
            if await store.has_jobs(db, row.id):
                raise QueueNotEmpty(f"queue {name} has live jobs or dead letters")
            return row._replace(config="{}", paused_at=None, paused_reason=None, deleted_at=self._infra.now())

        before, _ = await self._change(name, delete, self._lock)
        log.info("queue deleted", queue=name, caller=caller)
        return before.to_response()

    @retry_after_deadlock
    async def repair(self) -> None:
        """Undeletes queues that have jobs, reopens removed lanes that have jobs, and spreads groups
        over added lanes.

        A process with an outdated cache may enqueue into a deleted queue or a removed lane, where
        no claim would find the job. A background service calls this method periodically.
        """
        db = self._infra.db
        lanes = lanes_to_reopen(await store.unclaimed_lanes(db))
        ungrouped = [id_ for id_ in await store.queues_with_new_lanes(db) if not await store.has_groups(db, id_)]
        if not lanes and not ungrouped:
            return
        async with db.transaction() as transaction:
            reopened = await store.reopen_lanes(transaction, lanes)
            spread = await store.spread_groups(transaction, ungrouped)
            await self._infra.config_versions.bump(transaction, "policies")
        await self._infra.config_versions.announce()
        log.info("queues repaired", reopened=reopened, groups_spread=spread)

    @retry_after_deadlock
    async def _change(self, name: str, change: Change, lock_row: LockRow) -> tuple[QueueRow, QueueRow]:
        """Applies `change` to the row that `lock_row` locks. Returns the row before and after."""
        async with self._infra.db.transaction() as transaction:
            before = await lock_row(transaction, name)
            after = await change(transaction, before)
            if after != before:
                await store.write_queue(transaction, after)
                await self._infra.config_versions.bump(transaction, "policies")
        await self._infra.config_versions.announce()
        return before, after

    async def _lock(self, db: Executor, name: str) -> QueueRow:
        return _existing_row(await store.lock_queue(db, name), name)

    async def _lock_or_create(self, db: Executor, name: str) -> QueueRow:
        row = await store.lock_queue(db, name)
        if row is not None and row.deleted_at is None:
            return row
        queue_id = await store.next_queue_id(db) if row is None else row.id
        if queue_id is None:
            raise no_id_left()
        await store.add_queues(db, [NewQueue(queue_id, name)], self._infra.settings.max_queues)
        try:
            row = await self._lock(db, name)
        except NotFound:
            raise QueueLimit(f"there are {self._infra.settings.max_queues} queues already", retry_after=60) from None
        await self._infra.config_versions.bump(db, "policies")
        return row

    async def _apply_config(
        self, db: Executor, row: QueueRow, config: QueueConfig, request: QueueConfig, faults: Sequence[Fault]
    ) -> QueueRow:
        """Checks `config`, and returns the row of the queue with it.

        `request` has only the members that were sent, because a fault must point at one of these.
        `faults` are those that were found before; they are raised together with new ones.
        """
        lanes = value_or(config.lanes, row.lanes)
        changes_lanes_with_jobs = lanes != row.lanes and await store.has_jobs(db, row.id)
        stored = msgspec.structs.replace(config, lanes=UNSET, paused=UNSET)
        # If a queue with jobs gets more lanes, its groups stay in the old lanes until
        # `spread_groups` spreads them.
        group_lanes = lanes if lanes != row.lanes and not changes_lanes_with_jobs else row.group_lanes
        after = row._replace(lanes=lanes, group_lanes=group_lanes, config=msgspec.json.encode(stored).decode())
        raise_for_faults(
            [
                *faults,
                lease_fault(request, self._infra.settings),
                pause_fault(row, request),
                lanes_fault(row.lanes, lanes) if changes_lanes_with_jobs else None,
                *limit_faults(after.read_config(), request),
            ]
        )
        return after


def lanes_to_reopen(unclaimed: Sequence[int]) -> dict[int, int]:
    """Returns, by the id of the queue, how many lanes the queue needs so that claims read these
    lanes."""
    return {queue_id_of(lane): lane % LANES_PER_QUEUE + 1 for lane in sorted(unclaimed)}


def pause_row(row: QueueRow, reason: str | None, now: datetime) -> QueueRow:
    """Returns the row of the queue after a pause. If the queue is paused already, the row changes
    only if there is a new reason."""
    if row.paused_at is not None and reason in (None, row.paused_reason):
        return row
    return row._replace(paused_at=now, paused_reason=reason)


def merge_config(old: S, new: S) -> S:
    """Returns `old` with the members that are set in `new`. Merges nested objects the same way."""
    changes = {name: value for name, value in msgspec.structs.asdict(new).items() if value is not UNSET}
    return msgspec.structs.replace(
        old, **{name: _merge_value(getattr(old, name), value) for name, value in changes.items()}
    )


def _merge_value(old: object, new: object) -> object:
    return merge_config(old, new) if isinstance(old, msgspec.Struct) and isinstance(new, msgspec.Struct) else new


def lease_fault(request: QueueConfig, settings: Settings) -> Fault | None:
    seconds = request.default_lease_seconds
    if isinstance(seconds, UnsetType) or settings.min_lease_seconds <= seconds <= settings.max_lease_seconds:
        return None
    detail = f"default_lease_seconds must be from {settings.min_lease_seconds} to {settings.max_lease_seconds}"
    return Fault("/default_lease_seconds", "invalid", detail)


def pause_fault(row: QueueRow, request: QueueConfig) -> Fault | None:
    """Returns a fault if the request changes `paused`, because a deployment that sends the
    configuration must not end an operator's pause."""
    is_paused = row.paused_at is not None
    if value_or(request.paused, is_paused) == is_paused:
        return None
    state, since, verb = ("paused", "paused", "resume") if is_paused else ("not paused", "resumed", "pause")
    detail = (
        f"the queue is {state}; it may have been {since} after you read it: "
        f"omit paused, or use POST /queues/{row.name}/{verb}"
    )
    return Fault("/paused", "read_only", detail)


def lanes_fault(before: int, after: int) -> Fault | None:
    """Returns a fault if a queue with live jobs or dead letters would lose lanes, because a job
    could be in a removed lane."""
    if after >= before:
        return None
    detail = "their number can be reduced only while it has no live jobs and no dead letters"
    return Fault("/lanes", "invalid", f"the queue has {before} lanes; {detail}")


def limit_faults(config: QueueConfig, request: QueueConfig) -> Iterator[Fault]:
    """Yields a fault for each limit that the number of lanes does not allow.

    If the request contains the limit, the fault points at the limit. Otherwise the request has
    changed `lanes`, and the fault points at `lanes`.
    """
    for fault in rule_faults(config):
        is_requested = getattr(request, fault.pointer.removeprefix("/")) is not UNSET
        yield fault if is_requested else fault._replace(pointer="/lanes")


def _existing_row(row: QueueRow | None, name: str) -> QueueRow:
    if row is None or row.deleted_at is not None:
        raise NotFound(f"no queue named {name}")
    return row
