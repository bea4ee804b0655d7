"""Computes the times at which a schedule runs.

A schedule runs by cron or at a fixed interval, between its start and its end.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count, islice, takewhile

from app.errors import ValidationFailed
from app.http.schema_types import UnsetType, value_or
from app.schedules.cron import Cron, zone_named
from app.schedules.schemas import UNKNOWN_TIME_ZONE, SchedulePreview, SchedulePut

UPCOMING_RUNS = 5
TICK = timedelta(microseconds=1)  # the resolution of Postgres timestamps


@dataclass(frozen=True, slots=True)
class FixedInterval:
    """The times of a schedule with `every_seconds`: the anchor, and the anchor plus each multiple
    of the interval.
    """

    anchor: datetime
    interval: timedelta

    def after(self, instant: datetime) -> Iterator[datetime]:
        first = max(0, (instant - self.anchor) // self.interval + 1)
        return (self.anchor + n * self.interval for n in count(first))


@dataclass(frozen=True, slots=True)
class Recurrence:
    times: Cron | FixedInterval
    starts_at: datetime | None
    ends_at: datetime | None

    def after(self, instant: datetime) -> Iterator[datetime]:
        """Yields the runs after an instant, in order. The iterator may be endless."""
        if self.starts_at is not None and instant < self.starts_at:
            instant = self.starts_at - TICK
        return takewhile(lambda run: self.ends_at is None or run < self.ends_at, self.times.after(instant))

    def first_after(self, instant: datetime) -> datetime | None:
        return next(self.after(instant), None)

    def upcoming(self, next_run_at: datetime | None) -> list[datetime]:
        """Returns the next run, which may be due already, and the runs after it: at most five."""
        if next_run_at is None:
            return []
        return [next_run_at, *islice(self.after(next_run_at), UPCOMING_RUNS - 1)]


def recurrence_of(schedule: SchedulePut, created_at: datetime) -> Recurrence:
    """Builds the recurrence of a valid schedule.

    Intervals are counted from the start of the schedule, or else from its creation.
    """
    starts_at, ends_at = _utc(schedule.starts_at), _utc(schedule.ends_at)
    return Recurrence(times_of(schedule, starts_at or created_at), starts_at, ends_at)


def times_of(schedule: SchedulePreview, anchor: datetime) -> Cron | FixedInterval:
    """Builds the times of a schedule, without regard to its start and its end.

    Intervals are counted from `anchor`. Raises ValidationFailed if the time zone is unknown.
    """
    if isinstance(schedule.every_seconds, int):
        return FixedInterval(anchor, timedelta(seconds=schedule.every_seconds))
    assert isinstance(schedule.cron, str), "one of the two is present"
    zone = zone_named(value_or(schedule.timezone, "UTC"))
    if zone is None:  # another broker, with other time zone data, has accepted the name
        raise ValidationFailed.at("/timezone", UNKNOWN_TIME_ZONE)
    return Cron(schedule.cron, zone)


def same_times(old: SchedulePut, new: SchedulePut) -> bool:
    """Whether two schedules have the same times. Compares them field by field.

    A missing time zone equals UTC, because GET returns UTC for it.
    """
    zones = value_or(old.timezone, "UTC"), value_or(new.timezone, "UTC")
    return zones[0] == zones[1] and all(
        getattr(old, name) == getattr(new, name) for name in ("cron", "every_seconds", "starts_at", "ends_at")
    )


def _utc(instant: datetime | UnsetType) -> datetime | None:
    return None if isinstance(instant, UnsetType) else instant.astimezone(UTC)
