"""Pure: how many of a group may begin now, and with which numbers."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from app.concurrency.store import CooldownRow, GroupUsageRow, PassRow, WaitingRow

NO_LIMIT = 1000  # jobs of a group that may be claimed at once, where nothing else limits it


class GroupCapacity(NamedTuple):
    """`most`: how many get their turn. `lift`: the rest is over. `probes`: the first of them is the probe; or it is `probe`, which has its
    turn already."""

    most: int
    lift: bool = False
    probes: bool = False
    probe: UUID | None = None


def capacity(
    limit: int | None,
    held: GroupUsageRow | None,
    rest: CooldownRow | None,
    probe_state: str | None,
    now: datetime,
    *,
    fair: bool = False,
) -> GroupCapacity:
    free = _free(limit, held, fair=fair)
    if rest is None:
        return GroupCapacity(free)
    if rest.until > now:
        return GroupCapacity(0)
    if rest.probe is None or probe_state == "parked":  # it was given back, or is the first one
        return _begin_probe(free, held)
    if probe_state in ("ready", "running"):
        return GroupCapacity(0)
    return GroupCapacity(free, lift=True)  # it has ended, or it failed for a reason of its own: the others may go on


def _free(limit: int | None, held: GroupUsageRow | None, *, fair: bool) -> int:
    """In a fair queue so many are ready that no claim goes short, and no more: their turns are taken back when the group comes to rest."""
    ready, n = (held.ready, held.n) if held else (0, 0)
    return max(0, min(NO_LIMIT - ready if fair else NO_LIMIT, NO_LIMIT if limit is None else limit - n))


def _begin_probe(free: int, held: GroupUsageRow | None) -> GroupCapacity:
    """In a strict group the job that was told to come back later has kept its turn: then it is the probe, and may have begun already."""
    if held is not None and held.first is not None:
        return GroupCapacity(0, probe=held.first)
    return GroupCapacity(min(1, free), probes=True)


def assign_passes(
    waiting: Sequence[WaitingRow], rounds: Iterable[PassRow], served: Mapping[str, int]
) -> list[tuple[UUID, int]]:
    """Turns of a fair queue. In each round every group has one job: a group's next job comes one round after its last, and a group that
    comes anew begins with the round that is being served. Rounds are counted by priority, which comes first. `served`: the rounds of
    jobs that have just ended, by group; where groups are limited there may be no other trace of them."""
    last = {(row.group_key, row.priority): _last(row, served.get(row.group_key, 0)) for row in rounds}
    group_scheduler = []
    for row in sorted(waiting):
        last[row.group_key, row.priority] += 1
        group_scheduler.append((row.id, last[row.group_key, row.priority]))
    return group_scheduler


def _last(row: PassRow, served: int) -> int:
    """A job of another priority may have been served in a far higher round: nobody is sent behind the round after the next."""
    next_round = row.next or served
    return max(row.last or 0, next_round - 1, min(served, next_round))
