"""Decides how many jobs a due schedule enqueues now, and when it is due again. No I/O."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import chain, islice, takewhile
from typing import NamedTuple, assert_never

from app.schedules.recurrence import TICK, Recurrence
from app.schedules.schemas import Misfire

GRACE = timedelta(seconds=60)  # a run that is late by more than this counts as missed
MAX_RUNS = 100  # jobs of one schedule per transaction


class MisfirePlan(NamedTuple):
    """How many jobs to enqueue for the due runs of a schedule, and when the schedule runs next.

    - `missed`: at least one run is late by more than the grace period, even if a job is enqueued
      for this run.
    - `more`: there are too many runs for one transaction.
    """

    jobs: int
    next_run_at: datetime | None
    missed: bool = False
    more: bool = False


def plan_runs(
    recurrence: Recurrence, due: datetime, now: datetime, misfire: Misfire, limit: int = MAX_RUNS
) -> MisfirePlan:
    """Plans the due runs of a schedule under its misfire policy.

    `due` is the first run that has not fired yet, and must not be after `now`.
    """
    missed = due < now - GRACE
    match misfire:
        case Misfire.SKIP:
            return MisfirePlan(int(_last_run_is_on_time(recurrence, due, now)), recurrence.first_after(now), missed)
        case Misfire.ONCE:
            return MisfirePlan(1, recurrence.first_after(now), missed)
        case Misfire.ALL:
            return _plan_all(recurrence, due, now, limit)._replace(missed=missed)
        case _:
            assert_never(misfire)


def _last_run_is_on_time(recurrence: Recurrence, due: datetime, now: datetime) -> bool:
    """Whether the last due run is within the grace period.

    If so, the policy `skip` enqueues a job for this run. To avoid a burst, the policy skips all
    earlier runs that are due.
    """
    return due >= now - GRACE or any(True for _ in _runs_until(now, recurrence.after(now - GRACE - TICK)))


def _plan_all(recurrence: Recurrence, due: datetime, now: datetime, limit: int) -> MisfirePlan:
    """Plans one job for each due run.

    Runs that do not fit into one transaction stay due, so that other schedules can fire in between.
    """
    runs = list(islice(chain([due], _runs_until(now, recurrence.after(due))), limit + 1))
    if len(runs) > limit:
        return MisfirePlan(limit, runs[limit], more=True)
    return MisfirePlan(len(runs), recurrence.first_after(now))


def _runs_until(now: datetime, runs: Iterator[datetime]) -> Iterator[datetime]:
    return takewhile(lambda run: run <= now, runs)
