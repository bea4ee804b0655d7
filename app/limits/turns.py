"""Whose turn it is. Whoever comes to a group or leaves it says so after his commit; then, off his path and with the lane's gate held, it is
decided who may begin. A process that dies in between is covered by the regular look over all groups that wait."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

from app.db.floor import Floor
from app.db.lanes import by_lane
from app.db.pool import Runs
from app.jobs.signals import Signals
from app.keys import store as keys
from app.limits import deciding, store
from app.limits.deciding import MANY, Plan
from app.limits.store import RestRow, WaitingRow
from app.queues.registry import Queue, Queues

GROUPS = 500  # decided at once, with the gate held
LOOKED_AT = 1000  # groups, in one look over a lane
SORTED = 2000  # jobs, in one statement
HEAD = 10_000  # ready jobs among which those are sought that should not be ready
ON_THEIR_WAY = (1.0, 10.0)  # seconds after which a change of rules is looked at again; a request may wait that long for a connection
STRAYS_SECONDS = 10.0
_FIRST = UUID(int=0)

Rules = tuple[int | None, bool, bool]  # limit of groups, fair, whether leases are counted


class Turns:
    def __init__(self, floor: Floor, queues: Queues, signals: Signals) -> None:
        self._floor = floor
        self._queues = queues
        self._signals = signals
        self._moved: dict[int, set[str]] = {}
        self._served: dict[int, dict[str, int]] = {}
        self._unsorted: set[int] = set()
        self._uncounted: set[int] = set()
        self._in_force: dict[int, Rules] = {}
        self._started = False
        self._look_from: dict[int, str] = {}
        self._looked_at = 0.0
        self._strays_at = 0.0
        self._rests: list[RestRow] = []
        self._hearing = asyncio.Lock()  # or rules that were in force for a moment would pass for those that are
        self.nudge: Callable[[], None] = lambda: None
        signals.on_turn = self.moved
        floor.versions.heard.append(self.hear)

    def moved(self, lane: int, groups: Iterable[str | None]) -> None:
        """Costs nothing where nobody waits for a turn."""
        concerned = {group or "" for group in groups if self._queues.waits_for_turn(lane, group)}
        if concerned:
            self._moved.setdefault(lane, set()).update(concerned)
            self.nudge()

    def served(self, lane: int, turns: Iterable[tuple[str | None, int | None]]) -> None:
        """Groups of jobs that have just ended, and the turns they had; before the word that they left. Only fair queues go by it: those in
        which jobs without a group wait too."""
        if self._queues.waits_for_turn(lane, None):
            served = self._served.setdefault(lane, {})
            for group, turn in turns:
                served[group or ""] = max(turn or 0, served.get(group or "", 0))

    def look_at(self, lane: int) -> None:
        """All groups of the lane, as if somebody had moved in each."""
        self._look_from.pop(lane, None)
        self._looked_at = 0.0
        self.nudge()

    async def hear(self) -> None:
        """What queues are configured to, and who is at rest. Leases that run are counted before anybody asks how many there are; jobs that
        wait are sorted afterwards: claims hand out none of them meanwhile."""
        async with self._hearing:
            self._rests = await store.all_rests(self._floor.db)
            resting: dict[int, list[str]] = {}
            for rest in self._rests:
                resting.setdefault(rest.lane, []).append(rest.group_key)
            await self._queues.learn(resting)
            self._queues.resting = resting
            for queue in self._queues.everything():
                await self._put_in_force(queue)
            self._started = True
            self._set_alarms()
        self.nudge()

    async def _put_in_force(self, queue: Queue) -> None:
        rules = (queue.per_group, queue.fair, queue.max_running is not None)
        if rules == self._in_force.get(queue.id, (None, False, False)):
            return
        await self._count(queue)
        self._in_force[queue.id] = rules
        self._unsorted |= set(queue.all_lanes)
        self._signals.ready(queue.all_lanes[0], [None])
        for seconds in ON_THEIR_WAY if self._started else ():
            asyncio.get_running_loop().call_later(seconds, self._once_more, queue.id)

    def _once_more(self, queue_id: int) -> None:
        """For jobs that were on their way, or leases, when the rules changed: they were written by the old ones."""
        self._uncounted.add(queue_id)
        self.nudge()

    async def _count(self, queue: Queue) -> None:
        slots = True if queue.max_running is not None else None
        running = await store.leases_of_queue(self._floor.db, queue.id)
        for lane, ids in by_lane(running, lambda job_id: job_id).items():
            await store.count_running(self._floor.db, lane, ids, slots=slots, turns=queue.per_group is not None)
        if queue.per_group is not None:
            for lane in queue.all_lanes:
                await self._take_surplus(lane, queue.per_group)

    async def _take_surplus(self, lane: int, limit: int) -> None:
        """With the gate held: who decides by the old rules has done so before, and is seen here."""
        async with self._floor.db.transaction() as transaction:
            await keys.hold_gate(transaction, lane)
            await store.take_surplus(transaction, lane, limit)

    async def run_once(self) -> None:
        """The regular look, when it is time or rules have changed; and what has moved. What could not be decided is kept for next time."""
        await self._count_once_more()
        await self._sort()
        if time.monotonic() - self._looked_at >= self._floor.settings.sweep_seconds:
            self._looked_at = time.monotonic()
            await self._look()
        await self._decide_moved()

    async def _count_once_more(self) -> None:
        for queue in [queue for queue in self._queues.everything() if queue.id in self._uncounted]:
            await self._count(queue)
            self._unsorted |= set(queue.all_lanes)
            self._uncounted.discard(queue.id)

    async def _decide_moved(self) -> None:
        while self._moved:
            lane, groups = self._moved.popitem()
            try:
                for first in range(0, len(groups), GROUPS):
                    await self.decide(lane, sorted(groups)[first : first + GROUPS])
            except Exception:
                self._moved.setdefault(lane, set()).update(groups)
                raise

    async def _sort(self) -> None:
        """After a change of rules: ready jobs that have to wait are parked, parked ones that need not are ready."""
        while self._unsorted:
            lane = self._unsorted.pop()  # before we begin: rules may change meanwhile, and it is unsorted again
            try:
                await self._sort_lane(lane)
            except Exception:
                self._unsorted.add(lane)
                raise
            self.look_at(lane)

    async def _sort_lane(self, lane: int) -> None:
        after: UUID | None = _FIRST
        while after is not None:
            page = await store.sort_page(self._floor.db, lane, after, self._queues.parks(lane), SORTED)
            if page.ready:
                self._signals.ready(lane, page.ready)
            after = page.last

    async def _look(self) -> None:
        """Groups with free places in which somebody waits: those of jobs that came by SQL, and those whose process has died."""
        await self._park_strays()
        for rest in self._rests:
            if rest.until <= self._floor.now():
                self._moved.setdefault(rest.lane, set()).add(rest.group_key)
        for lane in await store.lanes_with_parked(self._floor.db):
            await self._queues.learn([lane])
            groups = await store.waiting_groups(self._floor.db, lane, self._look_from.get(lane, ""), LOOKED_AT)
            self._look_from[lane] = groups[-1] if len(groups) == LOOKED_AT else ""
            idle = await self._idle(lane, groups)
            if idle:
                self._moved.setdefault(lane, set()).update(idle)

    async def _park_strays(self) -> None:
        """Jobs that came in as if nobody had to wait: those of groups at rest, which claims pass over; and those of a queue whose
        rules changed while somebody's own transaction was open (longshore_enqueue), which may take as long as he likes."""
        lanes: Iterable[int] = self._queues.resting
        if time.monotonic() - self._strays_at >= STRAYS_SECONDS:
            self._strays_at = time.monotonic()
            lanes = self._queues.lanes()
        for lane in lanes:
            parks = self._queues.parks(lane)
            if parks is not None:
                await store.park_head(self._floor.db, lane, parks, HEAD)

    async def _idle(self, lane: int, groups: Sequence[str]) -> list[str]:
        """Groups at rest have been seen to."""
        awake = [group for group in groups if group not in self._queues.resting.get(lane, ())]
        limit = self._queues.of_lane(lane).per_group
        if limit is None or not awake:
            return awake
        held = await store.holders(self._floor.db, lane, awake, strict=limit == 1)
        return [group for group in awake if group not in held or held[group].n < limit]

    async def decide(self, lane: int, groups: Sequence[str]) -> None:
        """Gives as many turns as there are places, by the rules that are in force when we have the gate: see `_take_surplus`."""
        await self._queues.learn([lane])
        async with self._floor.db.transaction() as transaction:
            await keys.hold_gate(transaction, lane)
            queue = self._queues.of_lane(lane)
            plans = await self._plans(transaction, queue, lane, groups)
            waiting = await self._waiting(transaction, lane, plans)
            lifted = await self._keep_rests(transaction, lane, plans, waiting)
            types = await self._give(transaction, queue, lane, waiting)
        if lifted:
            await self._floor.versions.tell()
        if types:
            self._signals.ready(lane, types)
        self._come_back_for_more(lane, waiting)
        for group in groups:
            self._served.get(lane, {}).pop(group, None)

    async def _plans(self, on: Runs, queue: Queue, lane: int, groups: Sequence[str]) -> dict[str, Plan]:
        now = self._floor.now()
        rests = await store.rests_of(on, lane, groups)
        probes = [rest.probe for rest in rests.values() if rest.probe is not None]
        states = await store.probe_states(on, lane, sorted(probes)) if probes else {}
        asked = list(groups) if queue.per_group is not None else list(rests)
        limit = queue.per_group
        held = await store.holders(on, lane, asked, strict=limit == 1) if asked else {}
        return {
            group: deciding.plan(limit if group else None, held.get(group), rest, _state(rest, states), now)
            for group, rest in ((group, rests.get(group)) for group in groups)
        }

    async def _waiting(self, on: Runs, lane: int, plans: dict[str, Plan]) -> list[WaitingRow]:
        asked = [(group, plan.most) for group, plan in plans.items() if plan.most]
        return await store.next_in_line(on, lane, asked) if asked else []

    async def _keep_rests(self, on: Runs, lane: int, plans: dict[str, Plan], waiting: Sequence[WaitingRow]) -> bool:
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
            await store.lift(on, lane, over)
            await self._floor.versions.grow(on)
        return bool(over)

    async def _give(self, on: Runs, queue: Queue, lane: int, waiting: Sequence[WaitingRow]) -> list[str]:
        if not waiting:
            return []
        if not queue.fair:
            return await store.give_turns(on, lane, [(row.id, 1) for row in sorted(waiting)])
        asked = sorted({(row.group_key, row.priority) for row in waiting})
        turns = deciding.numbered(waiting, await store.rounds(on, lane, asked), self._served.get(lane, {}))
        return await store.give_turns(on, lane, turns)

    def _come_back_for_more(self, lane: int, waiting: Sequence[WaitingRow]) -> None:
        """Where nothing limits a group it is served in portions."""
        counts: dict[str, int] = {}
        for row in waiting:
            counts[row.group_key] = counts.get(row.group_key, 0) + 1
        more = {group for group, count in counts.items() if count >= MANY}
        if more:
            self._moved.setdefault(lane, set()).update(more)

    async def rest(self, on: Runs, lane: int, rests: Mapping[str, datetime]) -> None:
        """Downstreams of groups have asked for a pause: nobody of them begins before the time is over, and then one goes first. With the
        gate held; who calls this tells of the new version after his commit."""
        for group, until in sorted(rests.items()):
            await store.rest(on, lane, group, until)
            await store.take_turns_back(on, lane, group)
        await self._floor.versions.grow(on)

    def _set_alarms(self) -> None:
        """Those that are further away are found by the regular look."""
        for rest in self._rests:
            seconds = (rest.until - self._floor.now()).total_seconds()
            if 0 < seconds < self._floor.settings.sweep_seconds * 2:
                asyncio.get_running_loop().call_later(seconds + 0.001, self.moved, rest.lane, [rest.group_key])


def _state(rest: RestRow | None, states: dict[UUID, str]) -> str | None:
    """Of the probe; None if there is none, or none any more."""
    return states.get(rest.probe) if rest is not None and rest.probe is not None else None
