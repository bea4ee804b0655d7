"""Admits jobs of the groups of one lane in one transaction, for the group scheduler.

The group scheduler holds the lane lock. The states of a job, a group and its circuit breaker are
shown in group_scheduler.py.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from app.concurrency import fairness, store
from app.concurrency.fairness import GroupDecision
from app.concurrency.store import AdmitParams, CooldownRow, PassParams, PendingParams, PendingRow
from app.db.pool import Executor
from app.events import MovedJobRow
from app.queues.cache import Queue

ADMISSION_BATCH = 2000  # jobs admitted in one transaction: bounds how long the lane lock is held
HOLD_BACK_LIMIT = 10_000  # how many ready jobs of a lane are searched for jobs to hold back


class LaneAdmissions:
    def __init__(self, *, transaction: Executor, queue: Queue, lane: int) -> None:
        self._transaction = transaction
        self._queue = queue
        self._lane = lane

    async def revoke_for_older_jobs(self, groups: Sequence[str]) -> None:
        """Revokes the admission of an unstarted job of a strict group if an older job is pending.

        So the older job starts first. An older job becomes pending late if it was replayed, or if
        its parents finished late.
        """
        usage = await store.group_usage(self._transaction, self._lane, groups, strict=True)
        unstarted = {
            group: row.oldest_admitted
            for group, row in usage.items()
            if group and row.admitted == row.ready == 1 and row.oldest_admitted is not None
        }
        if not unstarted:
            return
        params = [PendingParams(group, 1) for group in unstarted]
        for row in await store.next_pending(self._transaction, self._lane, params, len(unstarted)):
            if row.id < unstarted[row.group_key]:
                await store.revoke_admissions(self._transaction, self._lane, row.group_key)

    async def decide_groups(self, groups: Sequence[str], now: datetime) -> dict[str, GroupDecision]:
        cooldowns = await store.cooldowns_of(self._transaction, self._lane, groups)
        probes = [cooldown.probe_job_id for cooldown in cooldowns.values() if cooldown.probe_job_id is not None]
        probe_states = await store.probe_states(self._transaction, self._lane, sorted(probes)) if probes else {}
        # If the queue does not hold all groups, only the choice of a probe needs the usage.
        groups_to_count = list(groups) if self._queue.holds_all_groups else list(cooldowns)
        limit = self._queue.max_running_per_group
        strict = limit == 1
        usage = (
            await store.group_usage(self._transaction, self._lane, groups_to_count, strict=strict)
            if groups_to_count
            else {}
        )
        return {
            group: fairness.decide_group(
                limit if group else None,
                usage.get(group),
                cooldown,
                _probe_state(cooldown, probe_states),
                now,
                fair=self._queue.fair,
            )
            for group, cooldown in ((group, cooldowns.get(group)) for group in groups)
        }

    async def hold_back_before_probes(self, decisions: Mapping[str, GroupDecision]) -> None:
        """Makes the ready jobs of a group pending before its half-open probe is admitted.

        A queue without `max_running_per_group` needs this: jobs that were ready when the cool-down
        began may still be ready, and would all start together with the probe.
        """
        probed = [group for group, decision in decisions.items() if decision.first_is_probe]
        if probed:
            await store.hold_back_first_ready(self._transaction, self._lane, probed, HOLD_BACK_LIMIT)

    async def next_pending(self, decisions: Mapping[str, GroupDecision]) -> list[PendingRow]:
        """Reads the pending jobs to admit, first those of groups that need a half-open probe.

        If the batch was full before such a group, the cool-down of the group would end without a
        probe.
        """
        params = [
            PendingParams(group, decision.admissions)
            for group, decision in sorted(decisions.items(), key=lambda item: not item[1].first_is_probe)
            if decision.admissions
        ]
        return await store.next_pending(self._transaction, self._lane, params, ADMISSION_BATCH) if params else []

    async def update_cooldowns(
        self, decisions: Mapping[str, GroupDecision], pending: Sequence[PendingRow]
    ) -> list[str]:
        """Stores the half-open probes that were chosen, and deletes the cool-downs that are over.

        A cool-down is also over if no job is left to be the probe. Returns the groups whose
        cool-downs were deleted.
        """
        first_ids: dict[str, UUID] = {}
        for row in sorted(pending):
            first_ids.setdefault(row.group_key, row.id)
        ended = []
        for group, decision in decisions.items():
            probe = decision.probe or (first_ids.get(group) if decision.first_is_probe else None)
            if probe is not None:
                await store.set_probe(self._transaction, self._lane, group, probe)
            elif decision.ends_cooldown or (decision.first_is_probe and decision.admissions):
                ended.append(group)
        if ended:
            await store.clear_cooldowns(self._transaction, self._lane, ended)
        return ended

    async def admit(self, pending: Sequence[PendingRow], remembered_passes: Mapping[str, int]) -> list[MovedJobRow]:
        """Admits the jobs. concurrency.sql lists the values of `admission`."""
        if not pending:
            return []
        if not self._queue.fair:
            admissions = [AdmitParams(row.id, 1) for row in sorted(pending)]
        else:
            params = sorted({PassParams(row.group_key, row.priority) for row in pending})
            pass_rows = await store.last_passes(self._transaction, self._lane, params)
            admissions = fairness.assign_passes(pending, pass_rows, remembered_passes)
        return await store.admit(self._transaction, self._lane, admissions)


def _probe_state(cooldown: CooldownRow | None, states: Mapping[UUID, str]) -> str | None:
    """Returns the state of the half-open probe of a cool-down.

    Returns None if there is no probe, or if the probe is no longer a live job.
    """
    return states.get(cooldown.probe_job_id) if cooldown is not None and cooldown.probe_job_id is not None else None
