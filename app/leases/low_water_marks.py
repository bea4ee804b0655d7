"""Low-water marks: where a claim starts to read a lane that is full of dead index entries.

The index entries of jobs that were claimed earlier stay until vacuum removes them, and vacuum
cannot remove them while any transaction holds an old snapshot. Reading past 100,000 of them cost a
claim 20 ms and 9,000 buffers. A mark is the id, for one lane and priority, up to which no ready job
was left.

    unused -> used     the periodic scan found that the first job is expensive to reach
    used   -> unused   the periodic scan found that it is cheap again
    mark raised        by a claim of all job types, to its last job
    mark lowered       when this process makes an older job ready, to right before that job
    mark set           by the scan, to right before the first ready job

A mark is a hint and may be too high:

    * another process requeues a job, or commits an older one late;
    * a claim skipped rows that another claim had locked and raised the mark past them, and then
      the other claim was rolled back.

No job is lost because of that, for three reasons:

    * a claim that finds fewer jobs than requested has read below the marks too, in the same
      statement;
    * while newer jobs fill all claims, `run_once` scans;
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
PAUSE_FACTOR = 50  # a pause is 50 times as long as its scans: 2 % of the time of one connection
MAX_PAUSE_SECONDS = 5.0  # an older job waits behind newer ones for no longer than this
MAX_LANES = 10_000
# Each marked priority is one more scan range, and so is each gap between two of them. Other
# priorities are read from their start.
MAX_PRIORITIES = 8


class RunningRead:
    """A claim or a periodic scan that is reading the lane.

    A job that becomes ready during the read may be missing from its result. `lower` is called with
    the id before that job, and caps the id up to which the read raises a mark.
    """

    def __init__(self) -> None:
        self.upper_bound = LAST_ID

    def lower(self, to: UUID) -> None:
        self.upper_bound = min(self.upper_bound, to)


class LaneMarks:
    """The marks of one lane: per priority, the id up to which no ready job was left."""

    def __init__(self, *, in_use: bool = False) -> None:
        self._marks: dict[int, UUID] = {}
        self._reads: set[RunningRead] = set()
        self._in_use = in_use  # if not, claims read the whole lane, in exact order
        # Whether a claim was filled from above the marks, so that the part below is unread.
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
        """Returns what a claim reads: the lane above the marks, in order, then the part below."""
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

        A claim of some job types skips other jobs: it only registers the priority, for the scan.
        """
        for row in {row.priority: row for row in rows}.values():
            reached = min(row.id, read.upper_bound) if all_types else FIRST_ID
            self._marks[row.priority] = max(self._marks.get(row.priority, FIRST_ID), reached)
        while len(self._marks) > MAX_PRIORITIES:
            del self._marks[min(self._marks)]

    def record_claim(self, *, is_filled: bool) -> None:
        """Requests a scan if the claim got as many jobs as it asked for (`is_filled`).

        Such a claim may not have read below the marks.
        """
        self.needs_scan |= is_filled

    async def rescan(self, db: Executor, lane: int, expensive_buffers: int) -> None:
        """Sets the marks to right before the first ready jobs, if these are expensive to reach.

        Otherwise claims use no marks.
        """
        self.needs_scan = False  # first, because a claim may be filled while the scan is running
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
        """Claims jobs, and reads the lane from its marks on.

        Lanes with held groups have no marks. Few of their jobs are ready, and marks would skip jobs
        that are admitted after newer ones.
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
        """Scans the lanes that need it, outside of claims. Pauses longer after long scans."""
        if time.monotonic() < self._pause_until:
            return
        spent = sum([await self._scan(lane, marks) for lane, marks in list(self._lanes.items()) if marks.needs_scan])
        self._pause_until = time.monotonic() + min(PAUSE_FACTOR * spent, MAX_PAUSE_SECONDS)

    async def _scan(self, lane: int, marks: LaneMarks) -> float:
        """Scans one lane. Returns the duration, without the wait for a connection."""
        async with self._db.autocommit() as connection:
            began = time.monotonic()
            await marks.rescan(connection, lane, self._expensive_buffers)
            return time.monotonic() - began


async def _buffers_to_first_ready(db: Executor, lane: int, priorities: Sequence[int]) -> int:
    """Counts the buffers that Postgres reads to find the first ready jobs.

    Buffers and not milliseconds, because everything is slow on a busy machine.
    """
    sql, *args = store.SQL.first_ready(lane=lane, priorities=priorities)
    explained = await db.value(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", *args)
    plan = msgspec.json.decode(explained)[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def _contiguous(rows: Sequence[ClaimedRow], params: ClaimParams) -> Sequence[ClaimedRow]:
    """Returns the rows up to the first job that the claim has left behind.

    When pollers share a claim, a poller whose response is full leaves jobs behind, and the next
    poller gets later ones.
    """
    counts = Counter(row.slice_number for row in rows)
    slices = params.poll_slices
    first_short = next((n for n, poll_slice in enumerate(slices, 1) if counts[n] < poll_slice.limit), len(slices))
    return [row for row in rows if row.slice_number <= max(first_short, 1)]


def _id_before(job_id: UUID) -> UUID:
    return UUID(int=max(0, job_id.int - 1))
