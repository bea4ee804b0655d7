"""When a schedule runs: by cron or every so many seconds, from its start to its end. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count, islice, takewhile

from app.errors import ValidationFailed
from app.http.schema_types import UNSET, UnsetType, value_or
from app.schedules.cron import Cron, CronError, zone_named
from app.schedules.schemas import SchedulePreview, SchedulePut

UPCOMING = 5
TICK = timedelta(microseconds=1)  # the database's


@dataclass(frozen=True, slots=True)
class FixedInterval:
    """At the anchor, and every so often after it."""

    anchor: datetime
    pace: timedelta

    def after(self, instant: datetime) -> Iterator[datetime]:
        first = max(0, (instant - self.anchor) // self.pace + 1)
        return (self.anchor + n * self.pace for n in count(first))


@dataclass(frozen=True, slots=True)
class Recurrence:
    times: Cron | FixedInterval
    starts_at: datetime | None
    ends_at: datetime | None

    def after(self, instant: datetime) -> Iterator[datetime]:
        """The runs after an instant, first to last: there may be no end to them."""
        if self.starts_at is not None and instant < self.starts_at:
            instant = self.starts_at - TICK
        return takewhile(lambda run: self.ends_at is None or run < self.ends_at, self.times.after(instant))

    def first_after(self, instant: datetime) -> datetime | None:
        return next(self.after(instant), None)

    def upcoming(self, next_run_at: datetime | None) -> list[datetime]:
        """The next run, which may be due and not fired yet, and what comes after it."""
        if next_run_at is None:
            return []
        return [next_run_at, *islice(self.after(next_run_at), UPCOMING - 1)]


def recurrence_of(wanted: SchedulePut, made_at: datetime) -> Recurrence:
    starts_at, ends_at = _utc(wanted.starts_at), _utc(wanted.ends_at)
    if starts_at is not None and ends_at is not None and ends_at <= starts_at:
        raise ValidationFailed.at("/ends_at", "ends_at must be after starts_at")
    return Recurrence(times_of(wanted, starts_at or made_at), starts_at, ends_at)


def times_of(wanted: SchedulePreview, anchor: datetime) -> Cron | FixedInterval:
    zone = zone_named(value_or(wanted.timezone, "UTC"))
    if zone is None:
        raise ValidationFailed.at("/timezone", "timezone must be the IANA name of a time zone, such as Europe/Berlin")
    if wanted.cron is not UNSET and wanted.every_seconds is not UNSET:
        raise ValidationFailed.at("/every_seconds", "send either cron or every_seconds, not both")
    if isinstance(wanted.every_seconds, int):
        return FixedInterval(anchor, timedelta(seconds=wanted.every_seconds))
    if isinstance(wanted.cron, UnsetType):
        raise ValidationFailed.at("/cron", "send either cron or every_seconds", "missing")
    try:
        return Cron(wanted.cron, zone)
    except CronError as error:
        raise ValidationFailed.at("/cron", f"{error}") from None


def same_times(one: SchedulePut, other: SchedulePut) -> bool:
    """Whether both have the same times, compared field by field. A missing time zone equals UTC, which GET returns for it."""
    zones = value_or(one.timezone, "UTC"), value_or(other.timezone, "UTC")
    return zones[0] == zones[1] and all(
        getattr(one, name) == getattr(other, name) for name in ("cron", "every_seconds", "starts_at", "ends_at")
    )


def _utc(instant: datetime | UnsetType) -> datetime | None:
    return None if isinstance(instant, UnsetType) else instant.astimezone(UTC)
