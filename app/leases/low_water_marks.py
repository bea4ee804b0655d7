"""Low-water marks: where a claim starts to read a lane that is full of dead index entries.

Ready spans that claims have emptied leave dead entries in their index until vacuum removes them. Vacuum
cannot remove them while any transaction holds an old snapshot. Jobs that are enqueued one by one have
a span each; reading past 100,000 dead entries cost a claim 20 ms and 9,000 buffers. A mark is the id,
for one lane and priority, up to which no ready job was left. Claims read the spans that begin after it,
because a claim has moved the beginning of each span to its first ready job.

The marks of a lane are used or unused:

    unused -> used     the periodic scan found that the first ready job is expensive to reach
    used   -> unused   the periodic scan found that the first ready job is cheap to reach again

A mark moves:

    raised    by a claim of all job types, to its last job
    lowered   when this process makes an older job ready, to right before that job
    set       by the periodic scan, to right before the first ready job

A mark is a hint and may be too high:

    * another process requeues a job, or commits an older job late;
    * a claim skipped rows that another claim had locked, and raised the mark past them; then the
      other claim was rolled back.

No job is lost because of a mark that is too high, for three reasons:

    * a claim that finds fewer jobs than requested has read below the marks too, in the same
      statement;
    * while claims find enough newer jobs above the marks, `run_once` scans for older jobs;
    * jobs that this process makes ready lower the marks immediately.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from uuid import UUID

import msgspec

from app.db.lanes import FIRST_ID, LAST_ID
from app.db.pool import Database, Executor
from app.events import EventBus, JobsMoved
from app.jobs.rows import ClaimedRow
from app.leases import store
from app.leases.rows import (
    FULL_RANGE,
    HIGHEST_PRIORITY,
    LOWEST_PRIORITY,
    ClaimParams,
    LanePolicy,
    ScanRange,
)
from app.periodic_service import PeriodicService

SCAN_SECONDS = 0.25
EXPENSIVE_BUFFERS = 200  # without dead entries a scan takes about five buffers for each priority
PAUSE_FACTOR = 50  # a pause is 50 times as long as the scans before it: scans use 2 % of one connection
MAX_PAUSE_SECONDS = 5.0  # an older job waits behind newer jobs for no longer than this
MAX_LANES = 10_000
# Each priority with a mark adds a scan range to claims, and so does each gap between two of these
# priorities. Priorities without a mark are read from their first job.
MAX_PRIORITIES = 8


class RunningRead:
    """A claim or a periodic scan that is reading the lane.

    A job that becomes ready during the read may be missing from its result. For such a job, `lower`
    is called with the id right before it. The read then raises no mark beyond that id.
    """

    def __init__(self) -> None:
        self.upper_bound = LAST_ID

    def lower(self, to: UUID) -> None:
        self.upper_bound = min(self.upper_bound, to)


class LaneMarks:
    """The marks of one lane: for each priority, the id up to which no ready job was left."""

    def __init__(self, *, in_use: bool = False) -> None:
        self._marks: dict[int, UUID] = {}
        self._reads: set[RunningRead] = set()
        self._in_use = in_use  # if False, claims read the whole lane, in exact order
        # Whether a claim got all its jobs from above the marks, and did not read the part below.
        self.needs_scan = False

    @contextmanager
    def track_read(self) -> Iterator[RunningRead]:
        read = RunningRead()
        self._reads.add(read)
        try:
            yield read
        finally:
            self._reads.discard(read)

    def scan_ranges(self) -> Sequence[ScanRange]:
        """Returns the parts of the lane that a claim reads.

        The parts above the marks come first, by priority, and the parts below the marks last.
        """
        if not self._in_use:
            return FULL_RANGE
        marks = sorted(self._marks.items(), reverse=True)
        ranges: list[ScanRange] = []
        highest = HIGHEST_PRIORITY
        for priority, mark in marks:
            if priority < highest:
                ranges.append(ScanRange(highest, priority + 1, FIRST_ID, LAST_ID))
            ranges.append(ScanRange(priority, priority, mark, LAST_ID))
            highest = priority - 1
        if highest >= LOWEST_PRIORITY:
            ranges.append(ScanRange(highest, LOWEST_PRIORITY, FIRST_ID, LAST_ID))
        return ranges + [ScanRange(priority, priority, FIRST_ID, mark) for priority, mark in marks if mark != FIRST_ID]

    def lower(self, to: UUID) -> None:
        self._marks = {priority: min(mark, to) for priority, mark in self._marks.items()}
        for read in self._reads:
            read.lower(to)

    def raise_to_last(self, read: RunningRead, rows: Sequence[ClaimedRow], *, all_types: bool) -> None:
        """Raises the mark of each priority to its last claimed row. `rows` are in claim order.

        A claim of only some job types skips jobs of other types, so it raises no mark. It only adds
        its priorities to those that the next scan covers.
        """
        for row in {row.priority: row for row in rows}.values():
            reached = min(row.id, read.upper_bound) if all_types else FIRST_ID
            self._marks[row.priority] = max(self._marks.get(row.priority, FIRST_ID), reached)
        while len(self._marks) > MAX_PRIORITIES:
            del self._marks[min(self._marks)]

    def record_claim(self, *, is_filled: bool) -> None:
        """Requests a scan if the claim got as many jobs as it requested (`is_filled`).

        Such a claim may not have read the part of the lane below the marks.
        """
        self.needs_scan |= is_filled

    async def rescan(self, db: Executor, lane: int, expensive_buffers: int) -> None:
        """Sets the marks to right before the first ready jobs, if these are expensive to reach.

        If the first ready jobs are cheap to reach, claims stop using the marks.
        """
        self.needs_scan = False  # before the scan, because a claim may request another scan meanwhile
        try:
            await self._set_to_first_ready(db, lane, expensive_buffers)
        except BaseException:
            self.needs_scan = True
            raise

    async def _set_to_first_ready(self, db: Executor, lane: int, expensive_buffers: int) -> None:
        self._in_use = await _buffers_to_first_ready(db, lane, list(self._marks)) > expensive_buffers
        if not self._in_use:
            return
        with self.track_read() as read:
            for priority, job_id in await store.first_ready(db, lane, list(self._marks)):
                self._marks[priority] = min(_id_before(job_id), read.upper_bound)


class LowWaterMarks(PeriodicService):
    def __init__(self, *, db: Database, events: EventBus, expensive_buffers: int | None = None) -> None:
        super().__init__()
        self._db = db
        self._expensive_buffers = EXPENSIVE_BUFFERS if expensive_buffers is None else expensive_buffers
        self._lanes: dict[int, LaneMarks] = {}
        self._pause_until = 0.0
        events.subscribe_moved(["ready"], self._on_ready)

    async def claim_with_marks(
        self, db: Executor, lane: int, limit: int, params: ClaimParams, policy: LanePolicy, now: datetime
    ) -> list[ClaimedRow]:
        """Claims jobs, reading the lane from its marks on, and raises the marks.

        Lanes with held groups have no marks, because few of their jobs are ready, and marks would
        skip jobs that are admitted after newer jobs.
        """
        if policy.held_groups is not None or policy.fair:
            return await store.claim(db, lane, limit, params, policy, now)
        marks = self._marks_of(lane)
        with marks.track_read() as read:
            rows = await store.claim(db, lane, limit, params, policy._replace(scan_ranges=marks.scan_ranges()), now)
            contiguous = rows if len(rows) >= limit else _contiguous(rows, params)
            marks.raise_to_last(read, contiguous, all_types=params.job_types is None)
            marks.record_claim(is_filled=len(rows) >= limit or len(contiguous) < len(rows))
        return rows

    def _marks_of(self, lane: int) -> LaneMarks:
        marks = self._lanes.get(lane)
        if marks is None:
            marks = self._lanes[lane] = LaneMarks(
                in_use=self._expensive_buffers < 0  # negative: always use marks (tests)
            )
            if len(self._lanes) > MAX_LANES:
                del self._lanes[next(iter(self._lanes))]
        return marks

    def _on_ready(self, event: JobsMoved) -> None:
        """Lowers the marks to right before the first of these jobs, which are in order of id."""
        if event.lane in self._lanes:
            self._lanes[event.lane].lower(_id_before(event.jobs[0].id))

    async def run_once(self) -> None:
        """Scans the lanes that need a scan. Later runs do nothing until a pause is over.

        The pause is PAUSE_FACTOR times as long as the scans, at most MAX_PAUSE_SECONDS.
        """
        if time.monotonic() < self._pause_until:
            return
        spent = sum([await self._scan(lane, marks) for lane, marks in list(self._lanes.items()) if marks.needs_scan])
        self._pause_until = time.monotonic() + min(PAUSE_FACTOR * spent, MAX_PAUSE_SECONDS)

    async def _scan(self, lane: int, marks: LaneMarks) -> float:
        """Scans one lane. Returns its duration in seconds, without the wait for a connection."""
        async with self._db.autocommit() as connection:
            began = time.monotonic()
            await marks.rescan(connection, lane, self._expensive_buffers)
            return time.monotonic() - began


async def _buffers_to_first_ready(db: Executor, lane: int, priorities: Sequence[int]) -> int:
    """Counts the buffers that Postgres reads to find the first ready jobs.

    Buffers are the measure, because on a busy machine any statement may take many milliseconds.
    """
    sql, *args = store.SQL.first_ready(lane=lane, priorities=priorities)
    explained = await db.value(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", *args)
    plan = msgspec.json.decode(explained)[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def _contiguous(rows: Sequence[ClaimedRow], params: ClaimParams) -> Sequence[ClaimedRow]:
    """Returns the rows up to the first job that the claim has left behind.

    When pollers share a claim, a poller whose response is full leaves jobs behind, and the next
    poller gets later jobs.
    """
    counts = Counter(row.slice_number for row in rows)
    slices = params.poll_slices
    first_short = next((n for n, poll_slice in enumerate(slices, 1) if counts[n] < poll_slice.limit), len(slices))
    return [row for row in rows if row.slice_number <= max(first_short, 1)]


def _id_before(job_id: UUID) -> UUID:
    return UUID(int=max(0, job_id.int - 1))
