"""How many jobs a due schedule enqueues, and when it is due again."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from app.schedules.cron import Cron
from app.schedules.misfires import GRACE, MAX_RUNS, MisfirePlan, plan_runs
from app.schedules.recurrence import FixedInterval, Recurrence
from app.schedules.schemas import Misfire

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
SECOND, TICK = timedelta(seconds=1), timedelta(microseconds=1)


def interval_recurrence(interval: timedelta, last: datetime = NOW, *, ends_at: datetime | None = None) -> Recurrence:
    """A recurrence with a run at `last` and a million runs before it."""
    return Recurrence(FixedInterval(last - 10**6 * interval, interval), None, ends_at)


@pytest.mark.parametrize(("misfire", "late_jobs"), [(Misfire.SKIP, 0), (Misfire.ONCE, 1), (Misfire.ALL, 1)])
def test_run_is_late_after_the_grace_period(misfire: Misfire, late_jobs: int) -> None:
    on_time, late = NOW - GRACE, NOW - GRACE - TICK
    hour = timedelta(hours=1)
    assert plan_runs(interval_recurrence(hour, on_time), on_time, NOW, misfire) == MisfirePlan(1, on_time + hour)
    assert plan_runs(interval_recurrence(hour, late), late, NOW, misfire) == MisfirePlan(
        late_jobs, late + hour, missed=True
    )


@pytest.mark.parametrize(("misfire", "jobs"), [(Misfire.SKIP, 1), (Misfire.ONCE, 1), (Misfire.ALL, 6)])
def test_only_misfire_all_fires_more_than_the_last_of_several_due_runs(misfire: Misfire, jobs: int) -> None:
    assert plan_runs(interval_recurrence(SECOND), NOW - 5 * SECOND, NOW, misfire) == MisfirePlan(jobs, NOW + SECOND)


@pytest.mark.parametrize("misfire", [Misfire.SKIP, Misfire.ONCE])
def test_misfire_skip_and_once_fire_one_job_for_many_missed_runs(misfire: Misfire) -> None:
    assert plan_runs(interval_recurrence(SECOND), NOW - timedelta(days=10), NOW, misfire) == MisfirePlan(
        1, NOW + SECOND, missed=True
    )


def test_limit_of_one_fires_one_run_and_leaves_the_others_due() -> None:
    assert plan_runs(interval_recurrence(SECOND), NOW - 5 * SECOND, NOW, Misfire.ALL, limit=1) == MisfirePlan(
        1, NOW - 4 * SECOND, more=True
    )


@pytest.mark.parametrize(
    ("runs", "jobs", "ahead"),
    [(MAX_RUNS, MAX_RUNS, 1), (MAX_RUNS + 1, MAX_RUNS, 0), (10**5, MAX_RUNS, MAX_RUNS + 1 - 10**5)],
)
def test_runs_above_the_transaction_limit_stay_due(runs: int, jobs: int, ahead: int) -> None:
    plan = plan_runs(interval_recurrence(SECOND), NOW - (runs - 1) * SECOND, NOW, Misfire.ALL)
    assert (plan.jobs, plan.next_run_at, plan.more) == (jobs, NOW + ahead * SECOND, runs > MAX_RUNS)


@pytest.mark.parametrize("misfire", Misfire)
def test_recurrence_that_has_ended_has_no_next_run(misfire: Misfire) -> None:
    assert plan_runs(interval_recurrence(SECOND, ends_at=NOW + TICK), NOW, NOW, misfire) == MisfirePlan(1, None)


def test_plan_of_a_year_of_missed_minutes_is_fast() -> None:
    minutely = Recurrence(Cron("* * * * *", ZoneInfo("UTC")), None, None)
    due = NOW - timedelta(days=365)
    assert plan_runs(minutely, due, NOW, Misfire.SKIP) == MisfirePlan(1, NOW + 60 * SECOND, missed=True)
    assert plan_runs(minutely, due, NOW, Misfire.ALL).jobs == MAX_RUNS


@pytest.mark.parametrize(("misfire", "jobs"), [(Misfire.SKIP, 1), (Misfire.ONCE, 1), (Misfire.ALL, 2)])
def test_due_run_fires_even_if_the_recurrence_no_longer_contains_it(misfire: Misfire, jobs: int) -> None:
    """The stored next run counts: another release, or other rules of a time zone, may have computed
    it.
    """
    assert plan_runs(interval_recurrence(timedelta(hours=1)), NOW - 7 * SECOND, NOW + SECOND, misfire).jobs == jobs
