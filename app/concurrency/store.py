"""Counts leases, admits pending jobs, and stores cool-downs and rate-limit usage.

The functions run the statements of concurrency.sql.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from app.db.pool import Executor
from app.db.queries import load_queries
from app.events import MovedJobRow

SQL = load_queries(__file__)


class UsageRow(NamedTuple):
    """The rate-limit usage of a lane: the number of jobs, and when the first and last slice began.

    A slice is a thousandth of the window of the rate limit. Jobs of one slice are counted together.
    """

    used: int
    first_at: datetime | None
    last_at: datetime | None


class GroupUsageRow(NamedTuple):
    """The admissions of one group.

    admitted          how many jobs are admitted
    ready             how many of them no worker has claimed
    oldest_admitted   the oldest of them that is ready; in a strict group it may be running
    """

    group_key: str
    admitted: int
    ready: int
    oldest_admitted: UUID | None


class PendingParams(NamedTuple):
    """A group, and how many of its pending jobs to read at most."""

    group_key: str
    max_jobs: int


class PendingRow(NamedTuple):
    id: UUID
    group_key: str
    priority: int


class PassParams(NamedTuple):
    group_key: str
    priority: int


class PassRow(NamedTuple):
    """The last pass of a group at a priority, and the current pass, which is being served."""

    group_key: str
    priority: int
    last: int | None
    current: int | None


class AdmitParams(NamedTuple):
    """A job to admit, and the number that it gets as `admission`: in a fair queue its pass."""

    id: UUID
    admission: int


class CheckedPage(NamedTuple):
    """A page of jobs to which changed rules were applied.

    last    its last job; None if the page is empty
    ready   how many of its jobs became ready
    """

    last: UUID | None
    ready: int


class CooldownRow(NamedTuple):
    """A cool-down of a group. `probe_job_id` is its half-open probe, None until one is chosen."""

    lane: int
    group_key: str
    until: datetime
    probe_job_id: UUID | None


async def count_slots(db: Executor, lane: int) -> int:
    running: int = await db.value(*SQL.count_slots(lane=lane))
    return running


async def rate_limit_usage(db: Executor, lane: int, since: datetime) -> UsageRow:
    row = await db.row(*SQL.rate_limit_usage(lane=lane, since=since))
    assert row is not None, "an aggregate without GROUP BY has one row"
    return UsageRow(*row)


async def record_usage(db: Executor, lane: int, slice_start: datetime, count: int, delete_before: datetime) -> None:
    await db.rows(*SQL.record_usage(lane=lane, slice_start=slice_start, count=count, delete_before=delete_before))


async def group_usage(db: Executor, lane: int, groups: Sequence[str], *, strict: bool) -> dict[str, GroupUsageRow]:
    rows = await db.rows(*SQL.group_usage(lane=lane, groups=groups, strict=strict))
    return {row["group_key"]: GroupUsageRow(*row) for row in rows}


async def next_pending(db: Executor, lane: int, params: Sequence[PendingParams], limit: int) -> list[PendingRow]:
    """Reads the oldest pending jobs of these groups, at most `limit` of all groups together."""
    rows = await db.rows(*SQL.next_pending.bind(params, lane=lane, limit=limit))
    return [PendingRow(*row) for row in rows]


async def last_passes(db: Executor, lane: int, params: Sequence[PassParams]) -> list[PassRow]:
    return [PassRow(*row) for row in await db.rows(*SQL.last_passes.bind(params, lane=lane))]


async def admit(db: Executor, lane: int, admissions: Sequence[AdmitParams]) -> list[MovedJobRow]:
    rows = await db.rows(*SQL.admit.bind(admissions, lane=lane))
    return sorted(MovedJobRow(*row) for row in rows)


async def revoke_admissions(db: Executor, lane: int, group: str) -> None:
    await db.rows(*SQL.revoke_admissions(lane=lane, group=group))


async def hold_back_first_ready(db: Executor, lane: int, held_groups: Sequence[str], limit: int) -> None:
    await db.rows(*SQL.hold_back_first_ready(lane=lane, held_groups=held_groups, limit=limit))


async def apply_rules_to_page(
    db: Executor, lane: int, after: UUID, held_groups: Sequence[str] | None, limit: int
) -> CheckedPage:
    row = await db.row(*SQL.apply_rules_to_page(lane=lane, after=after, held_groups=held_groups, limit=limit))
    assert row is not None, "a SELECT without FROM has one row"
    return CheckedPage(*row)


async def leases_of_queues(db: Executor, queue_ids: Sequence[int]) -> list[UUID]:
    return [row["id"] for row in await db.rows(*SQL.leases_of_queues(queue_ids=queue_ids))]


async def assign_slots(
    db: Executor, lane: int, ids: Sequence[UUID], *, uses_slot: bool | None, limits_groups: bool
) -> None:
    await db.rows(*SQL.assign_slots(lane=lane, ids=ids, uses_slot=uses_slot, limits_groups=limits_groups))


async def revoke_above_limit(db: Executor, lane: int, max_running_per_group: int) -> None:
    await db.rows(*SQL.revoke_above_limit(lane=lane, max_running_per_group=max_running_per_group))


async def lanes_with_pending(db: Executor) -> list[int]:
    return [row["lane"] for row in await db.rows(*SQL.lanes_with_pending())]


async def pending_groups(db: Executor, lane: int, start: str, limit: int) -> list[str]:
    return [row["group_key"] for row in await db.rows(*SQL.pending_groups(lane=lane, start=start, limit=limit))]


async def all_cooldowns(db: Executor) -> list[CooldownRow]:
    return [CooldownRow(*row) for row in await db.rows(*SQL.all_cooldowns())]


async def cooldowns_of(db: Executor, lane: int, groups: Sequence[str]) -> dict[str, CooldownRow]:
    rows = await db.rows(*SQL.cooldowns_of(lane=lane, groups=groups))
    return {row["group_key"]: CooldownRow(*row) for row in rows}


async def start_cooldown(db: Executor, lane: int, group: str, until: datetime) -> None:
    await db.rows(*SQL.start_cooldown(lane=lane, group=group, until=until))


async def set_probe(db: Executor, lane: int, group: str, job_id: UUID) -> None:
    await db.rows(*SQL.set_probe(lane=lane, group=group, job_id=job_id))


async def clear_cooldowns(db: Executor, lane: int, groups: Sequence[str]) -> None:
    await db.rows(*SQL.clear_cooldowns(lane=lane, groups=groups))


async def probe_states(db: Executor, lane: int, ids: Sequence[UUID]) -> dict[UUID, str]:
    return {row["id"]: row["state"] for row in await db.rows(*SQL.probe_states(lane=lane, ids=ids))}
