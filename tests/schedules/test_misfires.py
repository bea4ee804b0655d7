"""How many jobs a due schedule makes, and when it is due again."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from app.schedules.cron import Cron
from app.schedules.misfires import GRACE, MAX_RUNS, MisfirePlan, plan
from app.schedules.recurrence import FixedInterval, Recurrence
from app.schedules.schemas import Misfire

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
SECOND, TICK = timedelta(seconds=1), timedelta(microseconds=1)


def every(pace: timedelta, last: datetime = NOW, *, ends_at: datetime | None = None) -> Recurrence:
    """With a run at `last`, and as many before it as one likes."""
    return Recurrence(FixedInterval(last - 10**6 * pace, pace), None, ends_at)


@pytest.mark.parametrize(("misfire", "late_jobs"), [(Misfire.SKIP, 0), (Misfire.ONCE, 1), (Misfire.ALL, 1)])
def test_a_run_is_late_when_the_grace_is_over(misfire: Misfire, late_jobs: int) -> None:
    in_time, late = NOW - GRACE, NOW - GRACE - TICK
    hour = timedelta(hours=1)
    assert plan(every(hour, in_time), in_time, NOW, misfire) == MisfirePlan(1, in_time + hour)
    assert plan(every(hour, late), late, NOW, misfire) == MisfirePlan(late_jobs, late + hour, missed=True)


@pytest.mark.parametrize(("misfire", "jobs"), [(Misfire.SKIP, 1), (Misfire.ONCE, 1), (Misfire.ALL, 6)])
def test_of_several_runs_the_last_fires_and_the_others_only_if_all_are_wanted(misfire: Misfire, jobs: int) -> None:
    assert plan(every(SECOND), NOW - 5 * SECOND, NOW, misfire) == MisfirePlan(jobs, NOW + SECOND)


@pytest.mark.parametrize("misfire", [Misfire.SKIP, Misfire.ONCE])
def test_of_many_missed_runs_the_last_stands_for_all(misfire: Misfire) -> None:
    assert plan(every(SECOND), NOW - timedelta(days=10), NOW, misfire) == MisfirePlan(1, NOW + SECOND, missed=True)


def test_where_there_is_little_room_one_fires_and_the_rest_stays_due() -> None:
    assert plan(every(SECOND), NOW - 5 * SECOND, NOW, Misfire.ALL, most=1) == MisfirePlan(
        1, NOW - 4 * SECOND, more=True
    )


@pytest.mark.parametrize(
    ("runs", "jobs", "ahead"),
    [(MAX_RUNS, MAX_RUNS, 1), (MAX_RUNS + 1, MAX_RUNS, 0), (10**5, MAX_RUNS, MAX_RUNS + 1 - 10**5)],
)
def test_what_does_not_fit_into_one_transaction_stays_due(runs: int, jobs: int, ahead: int) -> None:
    planned = plan(every(SECOND), NOW - (runs - 1) * SECOND, NOW, Misfire.ALL)
    assert (planned.jobs, planned.next_run_at, planned.more) == (jobs, NOW + ahead * SECOND, runs > MAX_RUNS)


@pytest.mark.parametrize("misfire", Misfire)
def test_after_the_last_run_there_is_no_next_one(misfire: Misfire) -> None:
    assert plan(every(SECOND, ends_at=NOW + TICK), NOW, NOW, misfire) == MisfirePlan(1, None)


def test_a_year_of_missed_minutes_is_found_at_once() -> None:
    minutely = Recurrence(Cron("* * * * *", ZoneInfo("UTC")), None, None)
    due = NOW - timedelta(days=365)
    assert plan(minutely, due, NOW, Misfire.SKIP) == MisfirePlan(1, NOW + 60 * SECOND, missed=True)
    assert plan(minutely, due, NOW, Misfire.ALL).jobs == MAX_RUNS


@pytest.mark.parametrize(("misfire", "jobs"), [(Misfire.SKIP, 1), (Misfire.ONCE, 1), (Misfire.ALL, 2)])
def test_a_run_that_is_due_fires_even_if_the_times_have_changed_since(misfire: Misfire, jobs: int) -> None:
    """The database's word counts: another release, or other rules for a zone, may have computed it."""
    assert plan(every(timedelta(hours=1)), NOW - 7 * SECOND, NOW + SECOND, misfire).jobs == jobs
