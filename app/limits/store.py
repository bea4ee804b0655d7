"""Runs limits.sql."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from app.db.pool import Runs, columns
from app.db.sql import statements

SQL = statements(__file__)


class PassedRow(NamedTuple):
    n: int
    first_at: datetime | None
    last_at: datetime | None


class HolderRow(NamedTuple):
    group_key: str
    n: int
    ready: int
    first: UUID | None


class WaitingRow(NamedTuple):
    id: UUID
    group_key: str
    priority: int


class RoundRow(NamedTuple):
    group_key: str
    priority: int
    last: int | None
    next: int | None


class SortedPage(NamedTuple):
    last: UUID | None
    ready: list[str]


class RestRow(NamedTuple):
    lane: int
    group_key: str
    until: datetime
    probe: UUID | None


async def running_slots(on: Runs, lane: int) -> int:
    running: int = await on.value(SQL.running_slots, lane)
    return running


async def passed(on: Runs, lane: int, since: datetime) -> PassedRow:
    row = await on.row(SQL.passed, lane, since)
    assert row is not None, "an aggregate without GROUP BY has one row"
    return PassedRow(*row)


async def let_pass(on: Runs, lane: int, now: datetime, n: int, forget_before: datetime) -> None:
    await on.rows(SQL.let_pass, lane, now, n, forget_before)


async def holders(on: Runs, lane: int, groups: Sequence[str], *, strict: bool) -> dict[str, HolderRow]:
    return {row["group_key"]: HolderRow(*row) for row in await on.rows(SQL.holders, lane, groups, strict)}


async def next_in_line(on: Runs, lane: int, asked: Sequence[tuple[str, int]], most: int) -> list[WaitingRow]:
    """Asked are (group, how many)."""
    return [WaitingRow(*row) for row in await on.rows(SQL.next_in_line, lane, *columns(asked), most)]


async def rounds(on: Runs, lane: int, asked: Sequence[tuple[str, int]]) -> list[RoundRow]:
    """Asked are (group, priority)."""
    return [RoundRow(*row) for row in await on.rows(SQL.rounds, lane, *columns(asked))]


async def give_turns(on: Runs, lane: int, turns: Sequence[tuple[UUID, int]]) -> list[str]:
    return [row["job_type"] for row in await on.rows(SQL.give_turns, lane, *columns(turns))]


async def take_turns_back(on: Runs, lane: int, group: str) -> None:
    await on.rows(SQL.take_turns_back, lane, group)


async def park_head(on: Runs, lane: int, groups: Sequence[str], most: int) -> None:
    await on.rows(SQL.park_head, lane, groups, most)


async def sort_page(on: Runs, lane: int, after: UUID, parks: Sequence[str] | None, most: int) -> SortedPage:
    row = await on.row(SQL.sort_page, lane, after, parks, most)
    assert row is not None, "a SELECT without FROM has one row"
    return SortedPage(*row)


async def leases_of_queues(on: Runs, queue_ids: Sequence[int]) -> list[UUID]:
    return [row["id"] for row in await on.rows(SQL.leases_of_queues, queue_ids)]


async def count_running(on: Runs, lane: int, ids: Sequence[UUID], *, slots: bool | None, turns: bool) -> None:
    await on.rows(SQL.count_running, lane, ids, slots, turns)


async def take_surplus(on: Runs, lane: int, limit: int) -> None:
    await on.rows(SQL.take_surplus, lane, limit)


async def lanes_with_parked(on: Runs) -> list[int]:
    return [row["lane"] for row in await on.rows(SQL.lanes_with_parked)]


async def waiting_groups(on: Runs, lane: int, after: str, most: int) -> list[str]:
    return [row["group_key"] for row in await on.rows(SQL.waiting_groups, lane, after, most)]


async def all_rests(on: Runs) -> list[RestRow]:
    return [RestRow(*row) for row in await on.rows(SQL.all_rests)]


async def rests_of(on: Runs, lane: int, groups: Sequence[str]) -> dict[str, RestRow]:
    return {row["group_key"]: RestRow(*row) for row in await on.rows(SQL.rests_of, lane, groups)}


async def rest(on: Runs, lane: int, group: str, until: datetime) -> None:
    await on.rows(SQL.rest, lane, group, until)


async def set_probe(on: Runs, lane: int, group: str, probe: UUID) -> None:
    await on.rows(SQL.set_probe, lane, group, probe)


async def lift(on: Runs, lane: int, groups: Sequence[str]) -> None:
    await on.rows(SQL.lift, lane, groups)


async def probe_states(on: Runs, lane: int, ids: Sequence[UUID]) -> dict[UUID, str]:
    return {row["id"]: row["state"] for row in await on.rows(SQL.probe_states, lane, ids)}
