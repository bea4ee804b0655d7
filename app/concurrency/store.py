"""Runs limits.sql."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from app.db.pool import Executor, to_columns
from app.db.queries import load_queries

SQL = load_queries(__file__)


class UsageRow(NamedTuple):
    n: int
    first_at: datetime | None
    last_at: datetime | None


class GroupUsageRow(NamedTuple):
    group_key: str
    n: int
    ready: int
    first: UUID | None


class WaitingRow(NamedTuple):
    id: UUID
    group_key: str
    priority: int


class PassRow(NamedTuple):
    group_key: str
    priority: int
    last: int | None
    next: int | None


class CheckedPage(NamedTuple):
    last: UUID | None
    ready: list[str]


class CooldownRow(NamedTuple):
    lane: int
    group_key: str
    until: datetime
    probe: UUID | None


async def running_slots(on: Executor, lane: int) -> int:
    running: int = await on.value(SQL.running_slots, lane)
    return running


async def rate_limit_usage(on: Executor, lane: int, since: datetime) -> UsageRow:
    row = await on.row(SQL.rate_limit_usage, lane, since)
    assert row is not None, "an aggregate without GROUP BY has one row"
    return UsageRow(*row)


async def record_usage(on: Executor, lane: int, now: datetime, n: int, forget_before: datetime) -> None:
    await on.rows(SQL.record_usage, lane, now, n, forget_before)


async def group_usage(on: Executor, lane: int, groups: Sequence[str], *, strict: bool) -> dict[str, GroupUsageRow]:
    return {row["group_key"]: GroupUsageRow(*row) for row in await on.rows(SQL.group_usage, lane, groups, strict)}


async def next_waiting(on: Executor, lane: int, params: Sequence[tuple[str, int]], most: int) -> list[WaitingRow]:
    """Asked are (group, how many)."""
    return [WaitingRow(*row) for row in await on.rows(SQL.next_waiting, lane, *to_columns(params), most)]


async def last_passes(on: Executor, lane: int, params: Sequence[tuple[str, int]]) -> list[PassRow]:
    """Asked are (group, priority)."""
    return [PassRow(*row) for row in await on.rows(SQL.last_passes, lane, *to_columns(params))]


async def admit(on: Executor, lane: int, group_scheduler: Sequence[tuple[UUID, int]]) -> list[str]:
    return [row["job_type"] for row in await on.rows(SQL.admit, lane, *to_columns(group_scheduler))]


async def revoke_admissions(on: Executor, lane: int, group: str) -> None:
    await on.rows(SQL.revoke_admissions, lane, group)


async def hold_back_head(on: Executor, lane: int, groups: Sequence[str], most: int) -> None:
    await on.rows(SQL.hold_back_head, lane, groups, most)


async def apply_rules_to_page(
    on: Executor, lane: int, after: UUID, held_groups: Sequence[str] | None, most: int
) -> CheckedPage:
    row = await on.row(SQL.apply_rules_to_page, lane, after, held_groups, most)
    assert row is not None, "a SELECT without FROM has one row"
    return CheckedPage(*row)


async def leases_of_queues(on: Executor, queue_ids: Sequence[int]) -> list[UUID]:
    return [row["id"] for row in await on.rows(SQL.leases_of_queues, queue_ids)]


async def count_running(
    on: Executor, lane: int, ids: Sequence[UUID], *, slots: bool | None, group_scheduler: bool
) -> None:
    await on.rows(SQL.count_running, lane, ids, slots, group_scheduler)


async def revoke_surplus(on: Executor, lane: int, limit: int) -> None:
    await on.rows(SQL.revoke_surplus, lane, limit)


async def lanes_with_pending(on: Executor) -> list[int]:
    return [row["lane"] for row in await on.rows(SQL.lanes_with_pending)]


async def waiting_groups(on: Executor, lane: int, after: str, most: int) -> list[str]:
    return [row["group_key"] for row in await on.rows(SQL.waiting_groups, lane, after, most)]


async def all_cooldowns(on: Executor) -> list[CooldownRow]:
    return [CooldownRow(*row) for row in await on.rows(SQL.all_cooldowns)]


async def cooldowns_of(on: Executor, lane: int, groups: Sequence[str]) -> dict[str, CooldownRow]:
    return {row["group_key"]: CooldownRow(*row) for row in await on.rows(SQL.cooldowns_of, lane, groups)}


async def start_cooldown(on: Executor, lane: int, group: str, until: datetime) -> None:
    await on.rows(SQL.start_cooldown, lane, group, until)


async def set_probe(on: Executor, lane: int, group: str, probe: UUID) -> None:
    await on.rows(SQL.set_probe, lane, group, probe)


async def clear_cooldowns(on: Executor, lane: int, groups: Sequence[str]) -> None:
    await on.rows(SQL.clear_cooldowns, lane, groups)


async def probe_states(on: Executor, lane: int, ids: Sequence[UUID]) -> dict[UUID, str]:
    return {row["id"]: row["state"] for row in await on.rows(SQL.probe_states, lane, ids)}
