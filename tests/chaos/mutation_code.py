"""Deliberate bugs that are functions of the broker, replaced while it starts."""

import asyncio
import os
import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from app.db.clock import DatabaseClock
from app.db.pool import Database, Runs
from app.errors import DatabaseUnavailable
from app.jobs import uniqueness, wanted
from app.jobs.answers import Stored
from app.jobs.entries import Entry
from app.jobs.intake import Intake
from app.jobs.store import NewJob
from app.leases import store as leases
from app.leases.claiming import Claiming
from app.leases.schemas import Settlement, SettleResult
from app.leases.settling import Settling
from app.leases.store import ClaimedRow, SettledRow

SKEW = 3.0  # seconds by which the clock of each further broker is wrong
SLOW = 0.2  # seconds that a statement takes on a slow database: a client leaves meanwhile, and has come back before two more are over

_background: set[asyncio.Task[Any]] = set()


def own_clock() -> None:
    skew = SKEW * int(os.environ["CHAOS_BUGGIFY"].rpartition("/")[2])
    DatabaseClock.now = lambda _self: datetime.fromtimestamp(time.time() + skew, UTC)  # type: ignore[assignment, method-assign]


def unordered_locks() -> None:
    """Row by row, as if each had come in a call of its own."""
    sound = leases.put_back

    async def put_back(on: Runs, lane: int, rows: Sequence[tuple[object, ...]], **rules: Any) -> list[SettledRow]:
        if not isinstance(on, Database):
            return await sound(on, lane, rows, **rules)
        async with on.transaction() as transaction:
            done: list[SettledRow] = []
            for row in random.sample(list(rows), len(rows)):
                done += await sound(transaction, lane, [row], **rules)
                await asyncio.sleep(SLOW / 40)
            return done

    leases.put_back = put_back


def token_rotated() -> None:
    sound = Claiming._replayed
    rotate = "UPDATE jobs SET lease_token = gen_random_uuid() WHERE lane = $1 AND id = $2 RETURNING lease_token"

    async def replayed(self: Claiming, on: Runs, receipt: Any) -> list[ClaimedRow] | None:
        rows = await sound(self, on, receipt)
        return rows and [row._replace(lease_token=await on.value(rotate, row.lane, row.id)) for row in rows]

    Claiming._replayed = replayed  # type: ignore[method-assign]


def undone_with_a_key() -> None:
    sound = Claiming._delivered

    async def delivered(self: Claiming, rows: list[ClaimedRow], key: str | None, client: Any) -> list[ClaimedRow]:
        if rows and key is not None:
            await asyncio.sleep(SLOW)
            if client.gone:
                _begin(_undo(self, rows, client))
        return await sound(self, rows, key, client)

    async def _undo(self: Claiming, rows: list[ClaimedRow], client: Any) -> None:
        await asyncio.sleep(2 * SLOW)
        await sound(self, rows, None, client)

    Claiming._delivered = delivered  # type: ignore[method-assign]


def errors_swallowed() -> None:
    sound = Settling._settle_lane

    async def settle_lane(self: Settling, lane: int, items: Sequence[Settlement]) -> list[SettleResult]:
        try:
            return await sound(self, lane, items)
        except DatabaseUnavailable:
            return [SettleResult(job_id=item.job_id, status="settled", state="completed") for item in items]

    Settling._settle_lane = settle_lane  # type: ignore[method-assign]


def unknown_as_not_done() -> None:
    sound = DatabaseUnavailable.__init__

    def init(self: DatabaseUnavailable, detail: str, _outcome: Any, **members: Any) -> None:
        sound(self, detail, "not_done", **members)

    DatabaseUnavailable.__init__ = init  # type: ignore[assignment, method-assign]


def fire_and_forget() -> None:
    sound = Intake._store

    async def store(self: Intake, items: Sequence[Any], *rest: Any, **rules: Any) -> list[Stored]:
        _begin(sound(self, items, *rest, **rules))
        return [Stored(item.row.id) for item in items]

    Intake._store = store  # type: ignore[method-assign]


def batch_in_parts() -> None:
    async def store_together(self: Intake, items: Any, entries: Sequence[Entry], key: Any, *rest: Any, atomic: bool) -> Any:
        on: Any = self._floor.db
        known = await self._known(on, key, [Stored(entry.row.id) for entry in entries]) if key is not None else None
        if known is None:
            await self._write(on, entries, atomic=atomic)
        return known

    Intake._store_together = store_together  # type: ignore[method-assign]


def payload_touched() -> None:
    sound = wanted.new_job

    def new_job(*args: Any) -> NewJob:
        job = sound(*args)
        return job._replace(payload=job.payload.replace("1.5", "2"))

    wanted.new_job = new_job  # type: ignore[assignment]


def unique_unchecked() -> None:
    async def nobody(*_: object) -> dict[UUID, UUID]:
        return {}

    uniqueness._holders = nobody  # type: ignore[assignment]


def _begin(work: Any) -> None:
    task = asyncio.get_running_loop().create_task(work)
    _background.add(task)
    task.add_done_callback(_background.discard)
