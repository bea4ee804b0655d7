"""How queues are configured. Every change locks the queue's row; it is in force here when it is answered, elsewhere a moment later."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from typing import TypeVar

import msgspec
from asyncpg import UniqueViolationError

from app.db.infrastructure import Infrastructure
from app.db.pool import Executor, retry_after_deadlock
from app.errors import NotFound, QueueLimit, QueueNotEmpty, ValidationFailed
from app.http.authorization import Access
from app.http.pagination import EncodedPage, PageParams, encode_page
from app.http.schema_types import UNSET, value_or
from app.log import log
from app.queues import store
from app.queues.schemas import Queue, QueueConfig
from app.queues.store import QueueRow
from app.settings import Settings

TRIES = 20  # each lost race for a number means that somebody else won one

S = TypeVar("S", bound=msgspec.Struct)
Find = Callable[[Executor, str], Awaitable[QueueRow]]
Change = Callable[[Executor, QueueRow], Awaitable[QueueRow]]


class QueueService:
    def __init__(self, infra: Infrastructure) -> None:
        self._infra = infra

    async def page(self, page: PageParams, access: Access) -> EncodedPage[Queue]:
        rows = await store.list_queues(self._infra.reads, page.after("name"), page.limit + 1, access.regex)
        return await encode_page(
            rows,
            QueueRow.to_response,
            lambda queue: {"name": queue.name},
            limit=page.limit,
            max_bytes=self._infra.settings.max_list_bytes,
        )

    async def get(self, name: str) -> Queue:
        return _existing(await store.get_queue(self._infra.db, name), name).to_response()

    async def put(self, name: str, config: QueueConfig) -> Queue:
        """A queue that is refused has not come into being: it is made in the transaction that configures it."""

        async def replace(on: Executor, row: QueueRow) -> QueueRow:
            return await self._configured(on, row, config, sent=config)

        for _ in range(TRIES):
            with suppress(UniqueViolationError):
                _, after = await self._change(name, replace, self._lock_or_make)
                log.info("queue configured", queue=name)
                return after.to_response()
        raise QueueLimit("the queue could not be created", retry_after=1)

    async def update(self, name: str, config: QueueConfig) -> Queue:
        async def merge(on: Executor, row: QueueRow) -> QueueRow:
            return await self._configured(on, row, merged(row.rules(), config), sent=config)

        _, after = await self._change(name, merge, self._lock)
        log.info("queue configured", queue=name)
        return after.to_response()

    async def pause(self, name: str, reason: str | None) -> Queue:
        async def pause(_: Executor, row: QueueRow) -> QueueRow:
            return paused(row, reason, self._infra.now())

        _, after = await self._change(name, pause, self._lock)
        log.info("queue paused", queue=name, reason=after.paused_reason)
        return after.to_response()

    async def resume(self, name: str) -> Queue:
        async def resume(_: Executor, row: QueueRow) -> QueueRow:
            return row._replace(paused_at=None, paused_reason=None)

        _, after = await self._change(name, resume, self._lock)
        log.info("queue resumed", queue=name)
        return after.to_response()

    async def delete(self, name: str) -> Queue:
        """The queue as it was. Its lanes stay as they are: finished jobs lie in them."""

        async def delete(on: Executor, row: QueueRow) -> QueueRow:
            if await store.is_used(on, row.id):
                raise QueueNotEmpty(f"queue {name} has live jobs or dead letters")
            return row._replace(config="{}", paused_at=None, paused_reason=None, deleted_at=self._infra.now())

        before, _ = await self._change(name, delete, self._lock)
        log.info("queue deleted", queue=name)
        return before.to_response()

    @retry_after_deadlock
    async def revive_used(self) -> None:
        """The chore: a process that has not yet heard of a deleted queue, or of a closed lane, may put a job there; no job is forgotten.
        And groups follow the lanes that were opened for them."""
        async with self._infra.db.transaction() as transaction:
            revived, reopened = await store.revive_used(transaction), await store.reopen_lanes(transaction)
            spread = await store.spread_groups(transaction)
            if revived or reopened or spread:
                await self._infra.versions.bump(transaction, "policies")
        if revived or reopened or spread:
            await self._infra.versions.tell()
            log.info("queues set right", revived=revived, reopened=reopened, groups_spread=spread)

    @retry_after_deadlock
    async def _change(self, name: str, change: Change, find: Find) -> tuple[QueueRow, QueueRow]:
        """As it was, and as it is now."""
        async with self._infra.db.transaction() as transaction:
            before = await find(transaction, name)
            after = await change(transaction, before)
            if after != before:
                await store.write_queue(transaction, after)
                await self._infra.versions.bump(transaction, "policies")
        await self._infra.versions.tell()
        return before, after

    async def _lock(self, on: Executor, name: str) -> QueueRow:
        return _existing(await store.lock_queue(on, name), name)

    async def _lock_or_make(self, on: Executor, name: str) -> QueueRow:
        row = await store.lock_queue(on, name)
        if row is not None and row.deleted_at is None:
            return row
        number = await store.next_queue_id(on) if row is None else row.id
        await store.add_queues(on, [(number, name)], self._infra.settings.max_queues)
        try:
            row = await self._lock(on, name)
        except NotFound:
            raise QueueLimit(f"there are {self._infra.settings.max_queues} queues already", retry_after=60) from None
        await self._infra.versions.bump(on, "policies")
        return row

    async def _configured(self, on: Executor, row: QueueRow, rules: QueueConfig, *, sent: QueueConfig) -> QueueRow:
        check_lease(sent, self._infra.settings)
        check_pause(row, sent)
        stored = msgspec.structs.replace(rules, lanes=UNSET, paused=UNSET)
        after = await self._with_lanes(on, row, value_or(rules.lanes, row.lanes))
        after = after._replace(config=msgspec.json.encode(stored).decode())
        check_limits(after.rules(), sent)
        return after

    async def _with_lanes(self, on: Executor, row: QueueRow, lanes: int) -> QueueRow:
        """No job may be left in a lane that is closed. Groups stay where they are while there are jobs: see `spread_groups`."""
        if lanes == row.lanes:
            return row
        if not await store.is_used(on, row.id):
            return row._replace(lanes=lanes, group_lanes=lanes)
        if lanes < row.lanes:
            raise ValidationFailed.at(
                "/lanes", f"the queue has {row.lanes} lanes: there can be fewer only when no job is left in it"
            )
        return row._replace(lanes=lanes)


def paused(row: QueueRow, reason: str | None, now: datetime) -> QueueRow:
    """Pausing what is paused changes nothing, unless there is a new reason."""
    if row.paused_at is not None and reason in (None, row.paused_reason):
        return row
    return row._replace(paused_at=now, paused_reason=reason)


def merged(old: S, new: S) -> S:
    """Only what is given changes, within its objects too."""
    given_now = {name: value for name, value in msgspec.structs.asdict(new).items() if value is not UNSET}
    return msgspec.structs.replace(
        old, **{name: _merged(getattr(old, name), value) for name, value in given_now.items()}
    )


def _merged(old: object, new: object) -> object:
    return merged(old, new) if isinstance(old, msgspec.Struct) and isinstance(new, msgspec.Struct) else new


def check_lease(sent: QueueConfig, settings: Settings) -> None:
    seconds = sent.default_lease_seconds
    if isinstance(seconds, int) and not settings.min_lease_seconds <= seconds <= settings.max_lease_seconds:
        detail = f"default_lease_seconds must be from {settings.min_lease_seconds} to {settings.max_lease_seconds}"
        raise ValidationFailed.at("/default_lease_seconds", detail)


def check_pause(row: QueueRow, sent: QueueConfig) -> None:
    """A pause is not configuration: a deployment that sends the queue's configuration must not end an operator's pause."""
    is_paused = row.paused_at is not None
    if value_or(sent.paused, is_paused) != is_paused:
        state, since, verb = ("paused", "paused", "resume") if is_paused else ("not paused", "resumed", "pause")
        detail = f"the queue is {state}; perhaps it was {since} after you read it: leave paused out, or use POST /queues/{row.name}/{verb}"
        raise ValidationFailed.at("/paused", detail, "read_only")


def check_limits(rules: QueueConfig, sent: QueueConfig) -> None:
    """What is counted over the whole queue is counted in one place. Points at what was sent: the limit, or else the lanes."""
    for name in ("max_running", "rate"):
        if getattr(rules, name) is not UNSET and rules.lanes != 1:
            pointer = "/lanes" if getattr(sent, name) is UNSET else f"/{name}"
            raise ValidationFailed.at(pointer, f"{name} needs a queue with one lane; this one has {rules.lanes}")


def _existing(row: QueueRow | None, name: str) -> QueueRow:
    if row is None or row.deleted_at is not None:
        raise NotFound(f"no queue named {name}")
    return row
