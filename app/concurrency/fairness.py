"""The decisions of the group scheduler, as pure functions.

They decide how many jobs of a group are admitted next, in a fair queue in which pass (round), and
when the cool-down of a group ends.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from app.concurrency.store import AdmitParams, CooldownRow, GroupUsageRow, PassRow, PendingRow

MAX_READY_PER_FAIR_GROUP = 1000  # the maximum number of ready jobs of one group of a fair queue
# How many jobs of a group one check admits, even if max_running_per_group is higher or absent.
MAX_ADMISSIONS_PER_CHECK = 1000


class GroupDecision(NamedTuple):
    """The decision of the group scheduler about one group.

    - `admissions`: the number of pending jobs to admit.
    - `ends_cooldown`: whether the cool-down is over, so that its row is deleted.
    - `first_is_probe`: whether the first of the jobs to admit becomes the half-open probe.
    - `probe`: the job that becomes the half-open probe, if that job is admitted already.
    """

    admissions: int
    ends_cooldown: bool = False
    first_is_probe: bool = False
    probe: UUID | None = None


def decide_group(
    limit: int | None,
    usage: GroupUsageRow | None,
    cooldown: CooldownRow | None,
    probe_state: str | None,
    now: datetime,
    *,
    fair: bool = False,
) -> GroupDecision:
    """Decides how many pending jobs of a group are admitted, and whether its cool-down ends.

    The states of the circuit breaker are shown in group_scheduler.py.
    """
    free = _free_admissions(limit, usage, fair=fair)
    if cooldown is None:
        return GroupDecision(free)
    if cooldown.until > now:
        return GroupDecision(0)
    if cooldown.probe_job_id is None or probe_state == "pending":  # no probe yet, or the probe is pending again
        return _start_probe(free, usage)
    if probe_state in ("ready", "running"):
        return GroupDecision(0)
    return GroupDecision(free, ends_cooldown=True)  # the probe has finished, or failed with scope `job`


def _free_admissions(limit: int | None, usage: GroupUsageRow | None, *, fair: bool) -> int:
    """Returns how many more jobs of the group may be admitted.

    In a fair queue, up to MAX_READY_PER_FAIR_GROUP jobs of a group are ready. So no claim gets
    fewer jobs than it requests while jobs are pending. No more jobs are ready, because a cool-down
    has to revoke the admission of each ready job.
    """
    ready, admitted = (usage.ready, usage.admitted) if usage else (0, 0)
    below_limit = MAX_ADMISSIONS_PER_CHECK if limit is None else limit - admitted
    below_maximum = MAX_READY_PER_FAIR_GROUP - ready if fair else MAX_ADMISSIONS_PER_CHECK
    return max(0, min(below_limit, below_maximum))


def _start_probe(free: int, usage: GroupUsageRow | None) -> GroupDecision:
    """Chooses the half-open probe: the oldest admitted job, or else the oldest pending job.

    In a strict group, the job that failed keeps its admission while it waits for its retry. So when
    that job is ready, it is the oldest admitted job and becomes the probe. A worker may have
    started the job before it is chosen.
    """
    if usage is not None and usage.oldest_admitted is not None:
        return GroupDecision(0, probe=usage.oldest_admitted)
    return GroupDecision(min(1, free), first_is_probe=True)


def assign_passes(
    pending: Sequence[PendingRow], pass_rows: Sequence[PassRow], remembered_passes: Mapping[str, int]
) -> list[AdmitParams]:
    """Assigns a pass to each job to admit in a fair queue. The pass is stored as its `admission`.

    - In each pass every group gets one job, so a group's next job is one pass after its last job.
    - A group that is new or has fallen behind begins with the pass that is being served.
    - Passes are counted separately for each priority, because claims order jobs by priority first.

    `remembered_passes` has, for each group, the pass in which a job of the group last started or
    ended. The scheduler remembers this pass, because a limited group may have no admitted row left
    with the pass. If no job of a priority is ready, the current pass is the highest of
    `remembered_passes`: no group then begins far behind another.
    """
    latest = max((remembered_passes.get(row.group_key, 0) for row in pass_rows), default=0)
    last = {
        (row.group_key, row.priority): _last_pass(row, remembered_passes.get(row.group_key, 0), row.current or latest)
        for row in pass_rows
    }
    admissions = []
    for row in sorted(pending):
        last[row.group_key, row.priority] += 1
        admissions.append(AdmitParams(row.id, last[row.group_key, row.priority]))
    return admissions


def _last_pass(row: PassRow, remembered: int, current_pass: int) -> int:
    """Returns the last pass of a group at a priority.

    `remembered` is the pass in which a job of the group last started or ended. That job may have
    had another priority, where passes can be far higher, so `remembered` is capped at the current
    pass. The next job of the group then belongs to the current pass or to the next pass.
    """
    return max(row.last or 0, current_pass - 1, min(remembered, current_pass))
