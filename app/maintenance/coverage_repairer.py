"""Repairs ready spans and lease checks, page by page.

    missing span     of a ready job: no claim would find the job
    missing check    of a running job: its lease would never expire
    empty span       left by cancelled jobs, in a lane that no worker claims from

A missing span or check is a bug of the statement that changed the job, so each is logged as an error
and counted. An empty span only costs time; a claim removes those that it reads. Only the leader runs
the repairer.
"""

from collections import defaultdict
from collections.abc import Sequence

from app.db.infrastructure import Infrastructure
from app.db.lanes import FIRST_ID
from app.db.pool import retry_after_deadlock
from app.log import log
from app.maintenance import store
from app.maintenance.store import SpanRow
from app.periodic_service import PeriodicService

REPAIRED = "missing coverage added"  # the log event
PAGE_JOBS = 1000  # a page takes about 5 ms
PAGE_SPANS = 500
_FIRST_LANE = -(2**31)
_FIRST_JOB = (_FIRST_LANE, FIRST_ID)
_FIRST_SPAN = (_FIRST_LANE, 0, FIRST_ID)


class CoverageRepairer(PeriodicService):
    def __init__(self, *, infra: Infrastructure) -> None:
        super().__init__()
        self._infra = infra
        self._last_job = _FIRST_JOB
        self._last_span = _FIRST_SPAN

    async def run_once(self) -> None:
        await self._add_missing()
        await self._delete_empty()

    async def _add_missing(self) -> None:
        """Checks the next page of jobs. After the last page, begins with the first one again."""
        page = await store.add_coverage(self._infra.db, self._last_job, PAGE_JOBS)
        self._last_job = page.last_job if page.last_job is not None and page.jobs == PAGE_JOBS else _FIRST_JOB
        if page.spans or page.checks:
            self._infra.metrics.coverage_repaired.inc(page.spans + page.checks)
            log.error(REPAIRED, ready_spans=page.spans, lease_checks=page.checks)

    async def _delete_empty(self) -> None:
        """Deletes the empty spans of the next page."""
        page = await store.spans_after(self._infra.db, self._last_span, PAGE_SPANS)
        self._last_span = (
            (page[-1].lane, page[-1].priority, page[-1].first_id) if len(page) == PAGE_SPANS else _FIRST_SPAN
        )
        empty = defaultdict[int, list[SpanRow]](list)
        for span in page:
            if span.is_empty:
                empty[span.lane].append(span)
        for lane, spans in empty.items():
            await self._delete(lane, spans)

    @retry_after_deadlock
    async def _delete(self, lane: int, spans: Sequence[SpanRow]) -> None:
        async with self._infra.db.transaction() as transaction:
            await store.delete_empty_spans(transaction, lane, spans)
