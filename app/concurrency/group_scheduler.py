"""Decides which pending jobs of a group are admitted next.

A job is stored as pending if its queue is fair, or if its group is limited or cooling down. When a
job is added to such a group or removed from it, the commit wakes the scheduler. The scheduler then
decides, off the request path and under the lane lock, which jobs become claimable. If a broker dies
between the commit and the decision, a periodic scan of all groups with pending jobs finds the
group.

The states of a job of such a group:

    pending -> ready   admitted (`admission` is set): the group has free capacity
    ready -> pending   admission revoked: the group cools down, or a strict group gets an older job
    ready -> running   claimed: the job keeps its admission until it ends or is postponed; in a
                       strict group also while it is postponed

The states of a group with a limit (`max_running_per_group`; a limit of 1 makes the group strict):

    idle -> admitting    a job becomes pending, because it arrives or is due: as many jobs are
                         admitted as the limit leaves room for
    admitting -> full    as many jobs are admitted as the limit allows: the others stay pending
    full -> admitting    an admitted job ends, or the limit is raised
    admitting -> idle    no job is pending

The states of the circuit breaker of a group (a row in `group_cooldowns`: `until`, `probe_job_id`):

    closed      no row: only the limit counts
    open        `until` is in the future: no job is admitted, unclaimed admissions are revoked
    half-open   `until` has passed: one job, the half-open probe, is admitted

    closed -> open          a worker reports a failure with scope `group` (`start_cooldowns`)
    open -> open            another such failure: `until` only ever moves forward
    open -> half-open       `until` passes: the oldest pending job is the probe; in a strict group
                            the probe is the job that failed, because it has kept its admission
    open -> closed          `until` passes and no job is left to be the probe
    half-open -> half-open  the probe is pending again: the next probe is chosen
    half-open -> open       any job of the group fails with scope `group`
    half-open -> closed     the probe has finished, or it failed with scope `job`: other jobs are
                            admitted again
"""

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice

from app.concurrency import store
from app.concurrency.fairness import MAX_ADMISSIONS_PER_CHECK
from app.concurrency.lane_admissions import ADMISSION_BATCH, LaneAdmissions
from app.concurrency.store import CooldownRow, PendingRow
from app.db.infrastructure import Infrastructure
from app.db.pool import Executor, for_each, retry_after_deadlock
from app.events import FINISHED, EventBus, JobsMoved, JobsPurged, MovedJob
from app.locks import store as locks
from app.periodic_service import PeriodicService
from app.queues.cache import Queue, QueueCache

GROUPS_PER_TRANSACTION = 500  # bounds how long the lane lock is held
GROUPS_PER_SCAN = 1000  # groups of a lane that one scan reads
MAX_REMEMBERED_PASSES = 10_000  # groups of a lane of a fair queue whose last pass is remembered


class GroupScheduler(PeriodicService):
    def __init__(self, *, infra: Infrastructure, queues: QueueCache, events: EventBus) -> None:
        super().__init__()
        self._infra = infra
        self._queues = queues
        self._events = events
        self._changed_groups: dict[int, set[str]] = {}
        self._remembered_passes: dict[int, dict[str, int]] = {}
        self._scan_positions: dict[int, str] = {}
        self._scanned_at = 0.0
        self._cooldowns: list[CooldownRow] = []
        self._cooldowns_checked_at = datetime.min.replace(tzinfo=UTC)
        self._timer: asyncio.TimerHandle | None = None
        self._refresh_lock = asyncio.Lock()  # keeps a slow read from overwriting a newer result
        events.subscribe_moved(["pending", "scheduled", *FINISHED], self._on_waiting_or_finished)
        events.subscribe_moved(["ready"], self._on_ready)
        events.subscribe_moved(["running"], self._on_claimed)
        events.subscribe(JobsPurged, self._on_purged)
        infra.config_versions.subscribe("cooldowns", self.refresh_cooldowns)

    def _on_waiting_or_finished(self, event: JobsMoved) -> None:
        """Checks the groups of these jobs. Does nothing in a lane without held groups."""
        if self._queues.held_groups(event.lane) is not None:
            self._record_passes(event.lane, [job for job in event.jobs if job.admission is not None])
            self.check_groups(event.lane, {job.group_key for job in event.jobs})

    def _on_ready(self, event: JobsMoved) -> None:
        """Checks the jobs' groups that are cooling down: a job may become the half-open probe."""
        cooling_groups = self._queues.cooling_groups.get(event.lane)
        if cooling_groups:
            self.check_groups(event.lane, {job.group_key for job in event.jobs} & {*cooling_groups})

    def _on_claimed(self, event: JobsMoved) -> None:
        """In a fair queue, checks the groups of the claimed jobs: they may have room for more jobs.

        At most MAX_READY_PER_FAIR_GROUP jobs of a group are ready, so after a claim, other jobs can
        become ready. Groups with a limit are left out, because only the end of a job makes room
        below the limit. (If the limit is above MAX_READY_PER_FAIR_GROUP, a claim makes room, too;
        then the next scan admits jobs.)
        """
        queue = self._queues.by_lane(event.lane)
        if queue.fair:
            self._record_passes(event.lane, event.jobs)
            limits_groups = queue.max_running_per_group is not None
            groups = {job.group_key for job in event.jobs if not limits_groups or not job.group_key}
            self.check_groups(event.lane, groups)

    def _on_purged(self, event: JobsPurged) -> None:
        self.rescan(event.lane)

    def check_groups(self, lane: int, groups: Iterable[str | None]) -> None:
        """Requests a check of these groups, because jobs have joined or left them."""
        queue = self._queues.by_lane(lane)
        changed = {group or "" for group in groups if self._queues.needs_admission(queue, lane, group)}
        if changed:
            self._mark_changed(lane, changed)
            self.wake()

    def _mark_changed(self, lane: int, groups: Collection[str]) -> None:
        """Adds these groups to those that `run_once` checks next."""
        if groups:
            self._changed_groups.setdefault(lane, set()).update(groups)

    def _record_passes(self, lane: int, jobs: Iterable[MovedJob]) -> None:
        """Remembers, for each group, the pass of the job that has just started or ended.

        The pass is needed until the next job of the group is admitted, and the row of a finished
        job lacks it.
        """
        if self._queues.by_lane(lane).fair:
            remembered = self._remembered_passes.setdefault(lane, {})
            for job in jobs:
                group = job.group_key or ""
                remembered[group] = max(job.admission or 0, remembered.get(group, 0))
            for group in list(islice(remembered, max(0, len(remembered) - MAX_REMEMBERED_PASSES))):
                del remembered[group]

    def rescan(self, lane: int) -> None:
        """Requests an immediate scan of all lanes. In this lane, it begins with the first group."""
        self._scan_positions.pop(lane, None)
        self._scanned_at = 0.0
        self.wake()

    async def refresh_cooldowns(self) -> None:
        """Reloads the groups that are cooling down."""
        async with self._refresh_lock:
            self._cooldowns = await store.all_cooldowns(self._infra.db)
            cooling_groups: dict[int, list[str]] = {}
            for cooldown in self._cooldowns:
                cooling_groups.setdefault(cooldown.lane, []).append(cooldown.group_key)
            await self._queues.load_lanes(cooling_groups)
            self._queues.set_cooling_groups(cooling_groups)
            self._set_timer()
        self.wake()

    async def run_once(self) -> None:
        """Scans for pending jobs if a scan is due, then admits jobs of the changed groups."""
        if time.monotonic() - self._scanned_at >= self._infra.settings.sweep_seconds:
            self._scanned_at = time.monotonic()
            await self._scan()
        await self._admit_changed_groups()

    async def _admit_changed_groups(self) -> None:
        while self._changed_groups:
            changed, self._changed_groups = self._changed_groups, {}
            await for_each(changed.items(), lambda item: self._admit_lane(*item))

    async def _admit_lane(self, lane: int, groups: set[str]) -> None:
        """Admits jobs of these groups. If that fails, checks them again a scan interval later."""
        try:
            in_order = sorted(groups)
            for first in range(0, len(in_order), GROUPS_PER_TRANSACTION):
                await self.admit(lane, in_order[first : first + GROUPS_PER_TRANSACTION])
        except Exception:
            asyncio.get_running_loop().call_later(self._infra.settings.sweep_seconds, self.check_groups, lane, groups)
            raise

    async def _scan(self) -> None:
        """Finds groups with pending jobs and room for more admissions, and ended cool-downs.

        The scan is needed for groups that no event has reported: their jobs were enqueued by SQL,
        or the broker died before the decision.
        """
        for cooldown in self._cooldowns:
            if cooldown.until <= self._infra.now():
                self._mark_changed(cooldown.lane, [cooldown.group_key])
        for lane in await store.lanes_with_pending(self._infra.db):
            await self._queues.load_lanes([lane])
            position = self._scan_positions.get(lane, "")
            groups = await store.pending_groups(self._infra.db, lane, position, GROUPS_PER_SCAN)
            self._scan_positions[lane] = groups[-1] if len(groups) == GROUPS_PER_SCAN else ""
            self._mark_changed(lane, await self._groups_with_capacity(lane, groups))

    async def _groups_with_capacity(self, lane: int, groups: Sequence[str]) -> list[str]:
        """Returns the groups that have room for another admission.

        Cooling groups are left out, because `_scan` has added those whose cool-down is over. Jobs
        without a group ("") have no limit.
        """
        candidates = [group for group in groups if group not in self._queues.cooling_groups.get(lane, ())]
        limit = self._queues.by_lane(lane).max_running_per_group
        if limit is None or not candidates:
            return candidates
        usage = await store.group_usage(self._infra.db, lane, candidates, strict=limit == 1)
        return [group for group in candidates if not group or group not in usage or usage[group].admitted < limit]

    @retry_after_deadlock
    async def admit(self, lane: int, groups: Sequence[str]) -> None:
        """Admits as many jobs as the limits of these groups leave room for.

        Reads the rules under the lane lock, so that the decision uses the rules in effect at that
        moment; see rule_changes.py.
        """
        await self._queues.load_lanes([lane])
        remembered = {group: self._remembered_passes.get(lane, {}).get(group, 0) for group in groups}
        async with self._infra.db.transaction() as transaction:
            await locks.lock_lane(transaction, lane)
            queue = self._queues.by_lane(lane)
            admissions = LaneAdmissions(transaction=transaction, queue=queue, lane=lane)
            pending, ended_cooldowns = await self._choose_jobs(admissions, queue, groups)
            if ended_cooldowns:
                await self._infra.config_versions.bump(transaction, "cooldowns")
            admitted = await admissions.admit(pending, remembered)
        if ended_cooldowns:
            await self._infra.config_versions.announce()
        self._events.publish_moved(lane, admitted)
        self._continue_later(queue, lane, groups, pending)
        self._forget_passes(lane, {group: remembered[group] for group in {row.group_key for row in pending}})

    async def _choose_jobs(
        self, admissions: LaneAdmissions, queue: Queue, groups: Sequence[str]
    ) -> tuple[list[PendingRow], list[str]]:
        """Chooses the jobs to admit, stores half-open probes, and deletes cool-downs that are over.

        Returns the jobs, and the groups whose cool-downs were deleted.
        """
        if queue.max_running_per_group == 1:
            await admissions.revoke_for_older_jobs(groups)
        decisions = await admissions.decide_groups(groups, self._infra.now())
        if not queue.holds_all_groups:
            await admissions.hold_back_before_probes(decisions)
        pending = await admissions.next_pending(decisions)
        return pending, await admissions.update_cooldowns(decisions, pending)

    def _forget_passes(self, lane: int, used: Mapping[str, int]) -> None:
        """Forgets the passes of groups whose next jobs have been admitted.

        Keeps the pass of a group if another job of the group has started or ended since.
        """
        remembered = self._remembered_passes.get(lane, {})
        for group, number in used.items():
            if remembered.get(group) == number:
                del remembered[group]

    def _continue_later(self, queue: Queue, lane: int, groups: Collection[str], pending: Sequence[PendingRow]) -> None:
        """Requests another check of the groups that may have more jobs to admit.

        - After a full batch, these are all groups.
        - Otherwise, these are the groups of which MAX_ADMISSIONS_PER_CHECK jobs were admitted. In a
          fair queue such groups need no request here, because the next claim requests the check.
        """
        counts = Counter(row.group_key for row in pending)
        if len(pending) >= ADMISSION_BATCH:
            self._mark_changed(lane, groups)
        elif not queue.fair:
            self._mark_changed(lane, [group for group, count in counts.items() if count >= MAX_ADMISSIONS_PER_CHECK])

    async def start_cooldowns(self, transaction: Executor, lane: int, cooldowns: Mapping[str, datetime]) -> None:
        """Opens the circuit breakers of groups. `cooldowns` has the end of each cool-down.

        A worker has reported a failure with scope `group`. No job of the group starts before the
        cool-down ends, and then the half-open probe starts first. The calling function must hold
        the lane lock, and must announce the new config version after its commit.
        """
        for group, until in sorted(cooldowns.items()):
            await store.start_cooldown(transaction, lane, group, until)
            await store.revoke_admissions(transaction, lane, group)
        await self._infra.config_versions.bump(transaction, "cooldowns")

    def _set_timer(self) -> None:
        """Sets the timer to the earliest end of a cool-down. Cancels the previous timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ends = [cooldown.until for cooldown in self._cooldowns if cooldown.until > self._cooldowns_checked_at]
        if ends:
            seconds = max(0.0, (min(ends) - self._infra.now()).total_seconds())
            self._timer = asyncio.get_running_loop().call_later(seconds + 0.001, self._check_ended_cooldowns)

    def _check_ended_cooldowns(self) -> None:
        """Checks the groups whose cool-down has ended since the last call."""
        since, self._cooldowns_checked_at = self._cooldowns_checked_at, self._infra.now()
        for cooldown in self._cooldowns:
            if since < cooldown.until <= self._cooldowns_checked_at:
                self.check_groups(cooldown.lane, [cooldown.group_key])
        self._set_timer()
