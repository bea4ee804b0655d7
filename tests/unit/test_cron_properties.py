"""Cron around the days on which clocks are set, compared with a clock that is watched minute by minute."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise, takewhile
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.schedules.cron import Cron

# The broker of other tests lives in this process and rolls dice too: hypothesis takes that for ours.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)

MINUTE = timedelta(minutes=1)
ALL_HOURS = frozenset(range(24))

# Days around which clocks are set, on and back: by 30 minutes on Lord Howe, by a day in Apia, at midnight in São Paulo; in India never.
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

    def found(self) -> list[datetime]:
        return list(takewhile(lambda run: run <= self.end, Cron(str(self.fields), self.zone).after(self.start)))

    def clock(self) -> Iterator[tuple[datetime, datetime]]:
        """Every minute, and what the clock shows."""
        instant = self.start
        while (instant := instant + MINUTE) <= self.end:
            yield instant, _shown(instant, self.zone)


def _text(values: frozenset[int]) -> str:
    return ",".join(map(str, sorted(values)))


def _shown(instant: datetime, zone: ZoneInfo) -> datetime:
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def some(first: int, last: int, most: int = 4) -> st.SearchStrategy[frozenset[int]]:
    return st.frozensets(st.integers(first, last), min_size=1, max_size=most)


@st.composite
def cases(draw: st.DrawFn, hours: st.SearchStrategy[frozenset[int]]) -> Case:
    zone, day = draw(st.sampled_from(CHANGES))
    start = datetime(*day, tzinfo=UTC) + timedelta(minutes=draw(st.integers(-30 * 60, 14 * 60)))
    days = draw(st.none() | some(1, 31, 20))
    return Case(ZoneInfo(zone), start, Fields(draw(some(0, 59)), draw(hours), days))


# Around the hours at which clocks are set, or anywhere.
FIXED = cases(some(0, 4) | some(22, 23) | some(0, 23, 23))
EVERY_HOUR = cases(st.just(ALL_HOURS))


def seen_for_the_first_time(case: Case) -> list[datetime]:
    """Fires when the clock shows, or jumps over, a time that it had not shown before."""
    fired = []
    before = max(_shown(case.start - n * MINUTE, case.zone) for n in range(25 * 60))
    for instant, shown in case.clock():
        passed = (before + n * MINUTE for n in range(1, (shown - before) // MINUTE + 1))
        if any(case.fields.match(wall) for wall in passed):
            fired.append(instant)
        before = max(before, shown)
    return fired


@given(FIXED)
def test_fixed_times_fire_once_each_and_none_is_missed(case: Case) -> None:
    assert case.found() == seen_for_the_first_time(case)


@given(EVERY_HOUR)
def test_what_runs_every_hour_fires_whenever_the_clock_shows_its_time(case: Case) -> None:
    assert case.found() == [instant for instant, shown in case.clock() if case.fields.match(shown)]


@given(FIXED | EVERY_HOUR)
def test_runs_come_one_after_the_other(case: Case) -> None:
    found = [case.start, *case.found()]
    assert all(run < later for run, later in pairwise(found))


@given(FIXED | EVERY_HOUR, st.integers(0, 40 * 60 * 60))
def test_it_does_not_matter_where_one_begins(case: Case, seconds: int) -> None:
    middle = case.start + timedelta(seconds=seconds)
    later = [run for run in case._replace(start=middle).found() if run <= case.end]
    assert later == [run for run in case.found() if run > middle]
