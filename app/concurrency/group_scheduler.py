"""Whose turn it is. Whoever comes to a group or leaves it says so after his commit; then, off his path and with the lane's gate held, it is
decided who may begin. A process that dies in between is covered by the regular look over all groups that wait."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from uuid import UUID

from app.concurrency import fairness, store
from app.concurrency.fairness import NO_LIMIT, GroupCapacity
from app.concurrency.store import CooldownRow, WaitingRow
from app.db.infrastructure import Infrastructure
from app.db.pool import Executor, for_each, retry_after_deadlock
from app.jobs.signals import Signals
from app.locks import store as keys
from app.queues.cache import Queue, QueueCache

GROUPS = 500  # decided at once, with the gate held
ADMISSION_BATCH = 2000  # turns given at once, with the gate held
GROUPS_PER_SCAN = 1000  # groups, in one look over a lane
REMEMBERED = 10_000  # groups of a fair lane, with the round in which they were served last
HEAD = 10_000  # ready jobs among which those are sought that should not be ready


class GroupScheduler:
    def __init__(self, infra: Infrastructure, queues: QueueCache, signals: Signals) -> None:
        self._infra = infra
        self._queues = queues
        self._signals = signals
        self._moved: dict[int, set[str]] = {}
        self._served: dict[int, dict[str, int]] = {}
        self._look_from: dict[int, str] = {}
        self._looked_at = 0.0
        self._rests: list[CooldownRow] = []
        self._hearing = asyncio.Lock()  # or who was at rest a moment ago would pass for who is
        self.wake: Callable[[], None] = lambda: None
        signals.on_turn = self.moved
        infra.versions.hear("rests", self.hear)

    def moved(self, lane: int, groups: Iterable[str | None]) -> None:
        """Costs nothing where nobody waits for a turn."""
        concerned = {group or "" for group in groups if self._queues.needs_admission(lane, group)}
        if concerned:
            self._moved.setdefault(lane, set()).update(concerned)
            self.wake()

    def served(self, lane: int, group_scheduler: Iterable[tuple[str | None, int | None]]) -> None:
        """Groups of jobs that have just begun or ended, and their turns. Kept until the next of the group gets one: when the job has gone
        nothing else tells in which round it was. Only fair queues go by it: those in which jobs without a group wait too."""
        if self._queues.needs_admission(lane, None):
            served = self._served.setdefault(lane, {})
            for group, turn in group_scheduler:
                served[group or ""] = max(turn or 0, served.get(group or "", 0))
            for group in list(islice(served, max(0, len(served) - REMEMBERED))):
                del served[group]

    def rescan(self, lane: int) -> None:
        """All groups of the lane, as if somebody had moved in each."""
        self._look_from.pop(lane, None)
        self._looked_at = 0.0
        self.wake()

    async def hear(self) -> None:
        """Who is at rest."""
        async with self._hearing:
            self._rests = await store.all_cooldowns(self._infra.db)
            resting: dict[int, list[str]] = {}
            for rest in self._rests:
                resting.setdefault(rest.lane, []).append(rest.group_key)
            await self._queues.load(resting)
            self._queues.resting = resting
            self._set_alarms()
        self.wake()

    async def run_once(self) -> None:
        """The regular look, when it is time; and what has moved."""
        if time.monotonic() - self._looked_at >= self._infra.settings.sweep_seconds:
            self._looked_at = time.monotonic()
            await self._look()
        await self._decide_moved()

    async def _decide_moved(self) -> None:
        while self._moved:
            moved, self._moved = self._moved, {}
            await for_each(moved.items(), lambda item: self._decide_lane(*item))

    async def _decide_lane(self, lane: int, groups: set[str]) -> None:
        """What could not be decided is kept for next time."""
        try:
            for first in range(0, len(groups), GROUPS):
                await self.decide(lane, sorted(groups)[first : first + GROUPS])
        except Exception:
            asyncio.get_running_loop().call_later(self._infra.settings.sweep_seconds, self.moved, lane, groups)
            raise

    async def _look(self) -> None:
        """Groups with free places in which somebody waits: those of jobs that came by SQL, and those whose process has died."""
        for rest in self._rests:
            if rest.until <= self._infra.now():
                self._moved.setdefault(rest.lane, set()).add(rest.group_key)
        for lane in await store.lanes_with_pending(self._infra.db):
            await self._queues.load([lane])
            groups = await store.waiting_groups(self._infra.db, lane, self._look_from.get(lane, ""), GROUPS_PER_SCAN)
            self._look_from[lane] = groups[-1] if len(groups) == GROUPS_PER_SCAN else ""
            idle = await self._idle(lane, groups)
            if idle:
                self._moved.setdefault(lane, set()).update(idle)

    async def _idle(self, lane: int, groups: Sequence[str]) -> list[str]:
        """Groups at rest have been seen to; jobs without a group have no limit."""
        awake = [group for group in groups if group not in self._queues.resting.get(lane, ())]
        limit = self._queues.by_lane(lane).per_group
        if limit is None or not awake:
            return awake
        held = await store.group_usage(self._infra.db, lane, awake, strict=limit == 1)
        return [group for group in awake if not group or group not in held or held[group].n < limit]

    @retry_after_deadlock
    async def decide(self, lane: int, groups: Sequence[str]) -> None:
        """Gives as many turns as there are places, by the rules that are in force when we have the gate: see `sorting`."""
        await self._queues.load([lane])
        served = {group: self._served.get(lane, {}).get(group, 0) for group in groups}
        async with self._infra.db.transaction() as transaction:
            await keys.lock_lane(transaction, lane)
            queue = self._queues.by_lane(lane)
            if queue.per_group == 1:
                await self._let_older_ones_go_first(transaction, lane, groups)
            plans = await self._plans(transaction, queue, lane, groups)
            if not queue.admits_groups:
                await self._park_before_probes(transaction, lane, plans)
            waiting = await self._waiting(transaction, lane, plans)
            lifted = await self._keep_rests(transaction, lane, plans, waiting)
            types = await self._give(transaction, queue, lane, waiting, served)
        if lifted:
            await self._infra.versions.tell()
        if types:
            self._signals.ready(lane, types)
        self._come_back_for_more(queue, lane, groups, waiting)
        self._forget_served(lane, {group: served[group] for group, plan in plans.items() if plan.most})

    def _forget_served(self, lane: int, used: Mapping[str, int]) -> None:
        """Unless another job of the group was served meanwhile."""
        served = self._served.get(lane, {})
        for group, turn in used.items():
            if served.get(group) == turn:
                del served[group]

    async def _let_older_ones_go_first(self, on: Executor, lane: int, groups: Sequence[str]) -> None:
        """A job that was replayed, or whose parents took long, comes before a younger one that nobody has begun."""
        held = await store.group_usage(on, lane, groups, strict=True)
        unbegun = {
            group: row.first
            for group, row in held.items()
            if group and row.n == row.ready == 1 and row.first is not None
        }
        if unbegun:
            for row in await store.next_waiting(on, lane, [(group, 1) for group in unbegun], len(unbegun)):
                if row.id < unbegun[row.group_key]:
                    await store.revoke_admissions(on, lane, row.group_key)

    async def _plans(self, on: Executor, queue: Queue, lane: int, groups: Sequence[str]) -> dict[str, GroupCapacity]:
        now = self._infra.now()
        rests = await store.cooldowns_of(on, lane, groups)
        probes = [rest.probe for rest in rests.values() if rest.probe is not None]
        states = await store.probe_states(on, lane, sorted(probes)) if probes else {}
        params = list(groups) if queue.admits_groups else list(rests)
        limit = queue.per_group
        held = await store.group_usage(on, lane, params, strict=limit == 1) if params else {}
        return {
            group: fairness.capacity(
                limit if group else None, held.get(group), rest, _state(rest, states), now, fair=queue.fair
            )
            for group, rest in ((group, rests.get(group)) for group in groups)
        }

    async def _park_before_probes(self, on: Executor, lane: int, plans: dict[str, GroupCapacity]) -> None:
        """Where nobody waits for a turn, those that were ready when a rest began may be so still, and all would begin at once."""
        probed = [group for group, plan in plans.items() if plan.probes]
        if probed:
            await store.hold_back_head(on, lane, probed, HEAD)

    async def _waiting(self, on: Executor, lane: int, plans: dict[str, GroupCapacity]) -> list[WaitingRow]:
        """Probes first: a rest after which nobody is found to go first is over."""
        params = [
            (group, plan.most)
            for group, plan in sorted(plans.items(), key=lambda item: not item[1].probes)
            if plan.most
        ]
        return await store.next_waiting(on, lane, params, ADMISSION_BATCH) if params else []

    async def _keep_rests(
        self, on: Executor, lane: int, plans: dict[str, GroupCapacity], waiting: Sequence[WaitingRow]
    ) -> bool:
        """Whether any rest is over: also one after which nobody is there to go first."""
        first = {row.group_key: row.id for row in sorted(waiting, reverse=True)}
        over = []
        for group, plan in plans.items():
            probe = plan.probe or (first.get(group) if plan.probes else None)
            if probe is not None:
                await store.set_probe(on, lane, group, probe)
            elif plan.lift or (plan.probes and plan.most):
                over.append(group)
        if over:
            await store.clear_cooldowns(on, lane, over)
            await self._infra.versions.bump(on, "rests")
        return bool(over)

    async def _give(
        self, on: Executor, queue: Queue, lane: int, waiting: Sequence[WaitingRow], served: Mapping[str, int]
    ) -> list[str]:
        if not waiting:
            return []
        if not queue.fair:
            return await store.admit(on, lane, [(row.id, 1) for row in sorted(waiting)])
        params = sorted({(row.group_key, row.priority) for row in waiting})
        group_scheduler = fairness.assign_passes(waiting, await store.last_passes(on, lane, params), served)
        return await store.admit(on, lane, group_scheduler)

    def _come_back_for_more(
        self, queue: Queue, lane: int, groups: Iterable[str], waiting: Sequence[WaitingRow]
    ) -> None:
        """After a portion; in a fair queue claims say when there is room for more."""
        counts = Counter(row.group_key for row in waiting)
        more = (
            set(groups)
            if len(waiting) >= ADMISSION_BATCH
            else {group for group, count in counts.items() if count >= NO_LIMIT and not queue.fair}
        )
        if more:
            self._moved.setdefault(lane, set()).update(more)

    async def rest(self, on: Executor, lane: int, rests: Mapping[str, datetime]) -> None:
        """Downstreams of groups have asked for a pause: nobody of them begins before the time is over, and then one goes first. With the
        gate held; who calls this tells of the new version after his commit."""
        for group, until in sorted(rests.items()):
            await store.start_cooldown(on, lane, group, until)
            await store.revoke_admissions(on, lane, group)
        await self._infra.versions.bump(on, "rests")

    def _set_alarms(self) -> None:
        """Those that are further away are found by the regular look."""
        for rest in self._rests:
            seconds = (rest.until - self._infra.now()).total_seconds()
            if 0 < seconds < self._infra.settings.sweep_seconds * 2:
                asyncio.get_running_loop().call_later(seconds + 0.001, self.moved, rest.lane, [rest.group_key])


def _state(rest: CooldownRow | None, states: dict[UUID, str]) -> str | None:
    """Of the probe; None if there is none, or none any more."""
    return states.get(rest.probe) if rest is not None and rest.probe is not None else None
