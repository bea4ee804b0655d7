"""Where claims begin to look in a lane that is full of the dead: behind the jobs that were taken before. Their index entries stay until
vacuum has been there, and for as long as somebody holds a snapshot; reading past 100,000 of them cost a claim 20 ms and 9,000 buffers.

A floor is a hint, by lane and priority, and used only where reading from the beginning has become dear: `run_once` finds out. It may be
wrong: another process puts a job back or commits an older one late, a claim that had rows locked is rolled back. So whoever finds less
than he asked for has looked below the floors too, in the same statement; while newer jobs keep everybody busy, `run_once` looks; and what
this process makes ready itself lowers the floors at once.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from uuid import UUID

import msgspec

from app.db.pool import Database, Executor
from app.leases import store
from app.leases.store import LAST, NIL, ClaimedRow, ClaimParams, LanePolicy, ScanRange

SCAN_SECONDS = 0.25
EXPENSIVE_BUFFERS = 200  # buffers; without dead entries it takes about five for each priority
PAUSE = 50  # times what the looks took: 2 % of the time of one connection
MAX_PAUSE = 5.0  # an older job is not kept waiting behind newer ones for longer
MAX_LANES = 10_000
MAX_PRIORITIES = (
    8  # each is a zone more, and so is what lies between two; other priorities are read from their beginning
)


class Scan:
    """A claim or a look on its way. What becomes ready meanwhile it may not have seen, and must not pass over."""

    def __init__(self) -> None:
        self.ceiling = LAST

    def lower(self, to: UUID) -> None:
        self.ceiling = min(self.ceiling, to)


class LaneMarks:
    """By priority: the id up to which nothing was left."""

    def __init__(self, *, used: bool = False) -> None:
        self._after: dict[int, UUID] = {}
        self._walks: set[Scan] = set()
        self._used = used  # else the order is exact, whatever other processes do
        self.unseen = False  # whether claims have been filled from above the floors alone

    @contextmanager
    def walk(self) -> Iterator[Scan]:
        walk = Scan()
        self._walks.add(walk)
        try:
            yield walk
        finally:
            self._walks.discard(walk)

    def scan_ranges(self) -> Sequence[ScanRange]:
        """The whole lane: in its order above the floors, and then what lies below them."""
        if not self._used:
            return store.WHOLE_LANE
        floors = sorted(self._after.items(), reverse=True)
        zones: list[ScanRange] = []
        top = store.HIGHEST
        for priority, after in floors:
            if priority < top:
                zones.append(ScanRange(top, priority + 1, NIL, LAST))
            zones.append(ScanRange(priority, priority, after, LAST))
            top = priority - 1
        if top >= store.LOWEST:
            zones.append(ScanRange(top, store.LOWEST, NIL, LAST))
        return zones + [ScanRange(priority, priority, NIL, after) for priority, after in floors if after != NIL]

    def lower(self, to: UUID) -> None:
        self._after = {priority: min(after, to) for priority, after in self._after.items()}
        for walk in self._walks:
            walk.lower(to)

    def passed(self, walk: Scan, rows: Sequence[ClaimedRow], *, all_types: bool) -> None:
        """`rows` in their order: the last of each priority counts. Who asks for some types leaves others behind: then only a look can tell
        where the floor is."""
        for row in {row.priority: row for row in rows}.values():
            reached = min(row.id, walk.ceiling) if all_types else NIL
            self._after[row.priority] = max(self._after.get(row.priority, NIL), reached)
        while len(self._after) > MAX_PRIORITIES:
            del self._after[min(self._after)]

    async def look(self, on: Executor, lane: int, dear: int) -> None:
        """Sets the floors to where the first jobs are, if the way there is long."""
        self.unseen = False
        self._used = await _buffers_on_the_way(on, lane, list(self._after)) > dear
        if not self._used:
            return
        with self.walk() as walk:
            for priority, job_id in await store.first_ready(on, lane, list(self._after)):
                self._after[priority] = min(_before(job_id), walk.ceiling)


class LowWaterMarks:
    def __init__(self, db: Database, dear: int | None = None) -> None:
        self._db = db
        self._dear = EXPENSIVE_BUFFERS if dear is None else dear
        self._lanes: dict[int, LaneMarks] = {}
        self._rests_until = 0.0

    async def claim(
        self, on: Executor, lane: int, most: int, params: ClaimParams, rules: LanePolicy, now: datetime
    ) -> list[ClaimedRow]:
        """Where turns are given they decide what is ready, and that is little: floors would be in the way."""
        if rules.held_groups is not None or rules.in_turn:
            return await store.claim(on, lane, most, params, rules, now)
        floors = self._of(lane)
        with floors.walk() as walk:
            rows = await store.claim(on, lane, most, params, rules._replace(scan_ranges=floors.scan_ranges()), now)
            unbroken = rows if len(rows) >= most else _unbroken(rows, params)
            floors.passed(walk, unbroken, all_types=params.job_types is None)
        floors.unseen |= len(rows) >= most or len(unbroken) < len(rows)
        return rows

    def _of(self, lane: int) -> LaneMarks:
        floors = self._lanes.get(lane)
        if floors is None:
            floors = self._lanes[lane] = LaneMarks(used=self._dear < 0)
            if len(self._lanes) > MAX_LANES:
                del self._lanes[next(iter(self._lanes))]
        return floors

    def lower(self, lane: int, since: UUID | None) -> None:
        """Something has become ready here, from this id on or from anywhere."""
        if lane in self._lanes:
            self._lanes[lane].lower(_before(since or NIL))

    async def run_once(self) -> None:
        """Off the path of claims, and with long rests if it takes long."""
        if time.monotonic() < self._rests_until:
            return
        spent = sum([await self._look(lane, floors) for lane, floors in list(self._lanes.items()) if floors.unseen])
        self._rests_until = time.monotonic() + min(PAUSE * spent, MAX_PAUSE)

    async def _look(self, lane: int, floors: LaneMarks) -> float:
        """How long it took, without the wait for a connection."""
        async with self._db.held() as connection:
            began = time.monotonic()
            await floors.look(connection, lane, self._dear)
            return time.monotonic() - began


async def _buffers_on_the_way(on: Executor, lane: int, priorities: Sequence[int]) -> int:
    """To the first jobs. A count, as a busy machine makes everything slow."""
    explained = await on.value(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {store.SQL.first_ready}", lane, priorities)
    plan = msgspec.json.decode(explained)[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def _unbroken(rows: Sequence[ClaimedRow], params: ClaimParams) -> Sequence[ClaimedRow]:
    """Up to where nothing was left: of polls that share a claim, one whose answer is full leaves jobs behind; the next has later ones."""
    got = Counter(row.share for row in rows)
    short = next((n for n, share in enumerate(params.shares, 1) if got[n] < share.most), len(params.shares))
    return [row for row in rows if row.share <= max(short, 1)]


def _before(job_id: UUID) -> UUID:
    return UUID(int=max(0, job_id.int - 1))
