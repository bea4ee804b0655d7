"""Cron around daylight-saving changes, compared with a simulated clock, minute by minute."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise, takewhile
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.schedules.cron import Cron

# A broker of other tests runs in this process and uses `random` too; hypothesis would blame these
# tests.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)

MINUTE = timedelta(minutes=1)
ALL_HOURS = frozenset(range(24))

# Days around clock changes, forward and back: by 30 minutes on Lord Howe, by a day in Apia, at
# midnight in São Paulo; never in India.
CHANGES = [
    ("Europe/Berlin", (2026, 3, 29)),
    ("Europe/Berlin", (2026, 10, 25)),
    ("America/New_York", (2026, 3, 8)),
    ("America/New_York", (2026, 11, 1)),
    ("Australia/Lord_Howe", (2026, 4, 4)),
    ("Australia/Lord_Howe", (2026, 10, 3)),
    ("Africa/Casablanca", (2026, 2, 15)),
    ("Africa/Casablanca", (2026, 3, 22)),
    ("America/Sao_Paulo", (2018, 2, 18)),
    ("America/Sao_Paulo", (2018, 11, 4)),
    ("Pacific/Apia", (2011, 12, 30)),
    ("Asia/Kolkata", (2026, 1, 1)),
]


class Fields(NamedTuple):
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int] | None

    def __str__(self) -> str:
        hours = "*" if self.hours == ALL_HOURS else _text(self.hours)
        return f"{_text(self.minutes)} {hours} {'*' if self.days is None else _text(self.days)} * *"

    def match(self, wall: datetime) -> bool:
        return wall.minute in self.minutes and wall.hour in self.hours and (self.days is None or wall.day in self.days)


class Case(NamedTuple):
    zone: ZoneInfo
    start: datetime
    fields: Fields

    @property
    def end(self) -> datetime:
        return self.start + timedelta(hours=40)

    def runs(self) -> list[datetime]:
        return list(takewhile(lambda run: run <= self.end, Cron(str(self.fields), self.zone).after(self.start)))

    def clock(self) -> Iterator[tuple[datetime, datetime]]:
        """Yields every minute with the wall time at that minute."""
        instant = self.start
        while (instant := instant + MINUTE) <= self.end:
            yield instant, _wall_time(instant, self.zone)


def _text(values: frozenset[int]) -> str:
    return ",".join(map(str, sorted(values)))


def _wall_time(instant: datetime, zone: ZoneInfo) -> datetime:
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def integer_sets(first: int, last: int, max_size: int = 4) -> st.SearchStrategy[frozenset[int]]:
    return st.frozensets(st.integers(first, last), min_size=1, max_size=max_size)


@st.composite
def cases(draw: st.DrawFn, hours: st.SearchStrategy[frozenset[int]]) -> Case:
    zone, day = draw(st.sampled_from(CHANGES))
    start = datetime(*day, tzinfo=UTC) + timedelta(minutes=draw(st.integers(-30 * 60, 14 * 60)))
    days = draw(st.none() | integer_sets(1, 31, 20))
    return Case(ZoneInfo(zone), start, Fields(draw(integer_sets(0, 59)), draw(hours), days))


# Hours around the clock changes, or any hours.
FIXED = cases(integer_sets(0, 4) | integer_sets(22, 23) | integer_sets(0, 23, 23))
EVERY_HOUR = cases(st.just(ALL_HOURS))


def times_shown_for_the_first_time(case: Case) -> list[datetime]:
    """Returns when the clock shows, or jumps over, a matching time that it had not shown before."""
    runs = []
    before = max(_wall_time(case.start - n * MINUTE, case.zone) for n in range(25 * 60))
    for instant, wall_time in case.clock():
        walls = (before + n * MINUTE for n in range(1, (wall_time - before) // MINUTE + 1))
        if any(case.fields.match(wall) for wall in walls):
            runs.append(instant)
        before = max(before, wall_time)
    return runs


@pytest.mark.slow
@given(FIXED)
def test_fixed_cron_times_run_exactly_once(case: Case) -> None:
    assert case.runs() == times_shown_for_the_first_time(case)


@pytest.mark.slow
@given(EVERY_HOUR)
def test_hourly_schedule_runs_whenever_the_wall_time_matches(case: Case) -> None:
    assert case.runs() == [instant for instant, wall_time in case.clock() if case.fields.match(wall_time)]


@given(FIXED | EVERY_HOUR)
def test_cron_runs_are_strictly_increasing(case: Case) -> None:
    runs = [case.start, *case.runs()]
    assert all(run < later for run, later in pairwise(runs))


@given(FIXED | EVERY_HOUR, st.integers(0, 40 * 60 * 60))
def test_cron_runs_do_not_depend_on_the_start_time(case: Case, seconds: int) -> None:
    middle = case.start + timedelta(seconds=seconds)
    later = [run for run in case._replace(start=middle).runs() if run <= case.end]
    assert later == [run for run in case.runs() if run > middle]
