"""Pure decisions of the group scheduler: capacity of a group, and passes of a fair queue."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from app.concurrency.store import AdmitParams, CooldownRow, GroupUsageRow, PassRow, WaitingRow

NO_LIMIT = 1000  # claimable jobs of a group at one time, where no other limit applies


class GroupCapacity(NamedTuple):
    """What the scheduler does with one group.

    - `admissions`: how many pending jobs are admitted.
    - `ends_cooldown`: the cool-down is over; its row is deleted.
    - `first_is_probe`: the first job that is admitted becomes the half-open probe.
    - `probe`: a job that is admitted already and becomes the half-open probe.
    """

    admissions: int
    ends_cooldown: bool = False
    first_is_probe: bool = False
    probe: UUID | None = None


def capacity(
    limit: int | None,
    usage: GroupUsageRow | None,
    cooldown: CooldownRow | None,
    probe_state: str | None,
    now: datetime,
    *,
    fair: bool = False,
) -> GroupCapacity:
    """Decides about one group. Its circuit breaker is drawn in group_scheduler.py."""
    free = _free_admissions(limit, usage, fair=fair)
    if cooldown is None:
        return GroupCapacity(free)
    if cooldown.until > now:
        return GroupCapacity(0)
    if cooldown.probe_job_id is None or probe_state == "pending":  # the first probe, or the last one is pending again
        return _start_probe(free, usage)
    if probe_state in ("ready", "running"):
        return GroupCapacity(0)
    return GroupCapacity(free, ends_cooldown=True)  # the probe has finished, or failed with scope `job`


def _free_admissions(limit: int | None, usage: GroupUsageRow | None, *, fair: bool) -> int:
    """Returns how many more jobs the group may have admitted.

    In a fair queue up to NO_LIMIT jobs of a group are ready, so that no claim comes back short.
    More are not: a cool-down has to revoke every admission that no worker has claimed.
    """
    ready, admitted = (usage.ready, usage.admitted) if usage else (0, 0)
    return max(0, min(NO_LIMIT - ready if fair else NO_LIMIT, NO_LIMIT if limit is None else limit - admitted))


def _start_probe(free: int, usage: GroupUsageRow | None) -> GroupCapacity:
    """Chooses the half-open probe.

    In a strict group the job that failed has kept its admission while it waits for its retry. That
    job is the probe, and a worker may have started it already.
    """
    if usage is not None and usage.first is not None:
        return GroupCapacity(0, probe=usage.first)
    return GroupCapacity(min(1, free), first_is_probe=True)


def assign_passes(
    waiting: Sequence[WaitingRow], passes: Iterable[PassRow], last_passes: Mapping[str, int]
) -> list[AdmitParams]:
    """Numbers the admissions of a fair queue: the number is a pass.

    In each pass every group gets one job, so a group's next job is one pass after its last. A group
    that joins begins with the pass that is being served. Passes are counted per priority, because
    priority comes first. `last_passes` has the passes of jobs that have just started or ended, by
    group: where groups are limited, no row may be left that says in which pass they were.
    """
    last = {(row.group_key, row.priority): _last_pass(row, last_passes.get(row.group_key, 0)) for row in passes}
    admissions = []
    for row in sorted(waiting):
        last[row.group_key, row.priority] += 1
        admissions.append(AdmitParams(row.id, last[row.group_key, row.priority]))
    return admissions


def _last_pass(row: PassRow, remembered: int) -> int:
    """Returns the last pass of a group at a priority.

    `remembered` may be the far higher pass of a job of another priority. It counts up to the next
    pass only, so no job is placed later than the pass after the next.
    """
    next_pass = row.next or remembered
    return max(row.last or 0, next_pass - 1, min(remembered, next_pass))
