"""Computes the runs of a cron expression in a time zone, correctly across daylight saving changes.

The library cronsim gets only wall-clock times without a zone. With an aware datetime, cronsim loses
runs on the days on which the clock changes. This module converts the wall-clock times that cronsim
returns to UTC, in one of two ways:

- A schedule with fixed hours (a daily 01:30) follows wall-clock time. A time that occurs twice
  fires only the first time. A time that the clock skips fires at the jump. If another run is due at
  the jump, both fire as one run.
- A schedule for every hour (`*/30 * * * *`) follows elapsed time: it fires whenever the clock shows
  a matching time, in both passes of a repeated hour.
"""

import heapq
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_FIELDS = {
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day of the month": "1 to 31, or L for the last one",
    "month": "1 to 12, or JAN to DEC",
    "day of the week": "0 to 7, or SUN to SAT",
}
_NEVER_RUNS = "cron never fires: no date matches it"
_ANY_DAY = datetime(2000, 1, 1)  # noqa: DTZ001 (wall-clock times have no zone)


class CronError(ValueError):
    """The cron expression is invalid, or it never fires."""


class Cron:
    def __init__(self, expression: str, zone: ZoneInfo) -> None:
        self._expression = MACROS.get(expression.strip().lower(), expression)
        self._zone = zone
        self._runs_every_hour = len(_parsed(self._expression).hours) == 24

    def after(self, instant: datetime) -> Iterator[datetime]:
        """Yields the runs after an instant, in UTC. Ends if no run follows within 50 years."""
        last = instant
        for run in self._all_instants(instant) if self._runs_every_hour else self._first_instants(instant):
            if run > last:
                yield run
                last = run

    def _first_instants(self, instant: datetime) -> Iterator[datetime]:
        """Yields the first instant of each wall-clock time.

        For a time that the clock skips, yields the instant of the jump.
        """
        for wall_time in self._wall_times(_wall_time(instant, self._zone)):
            first = _to_instant(wall_time, self._zone)
            yield _jump_instant(wall_time, self._zone) if first is None else first

    def _all_instants(self, instant: datetime) -> Iterator[datetime]:
        """Yields every instant of each wall-clock time: two instants for a time that occurs twice.

        A repeated hour has two passes. The search in the second pass starts at an earlier
        wall-clock time. For example, the clock repeats the hour from 1:00 to 2:00, and shows 1:40
        for the first time. Then the second 1:10 is still ahead.
        """
        wall_time = _wall_time(instant, self._zone)
        first_pass = self._wall_times(wall_time)
        second_pass = self._wall_times(wall_time - _time_between_passes(wall_time, self._zone))
        return heapq.merge(_to_instants(first_pass, self._zone, fold=0), _to_instants(second_pass, self._zone, fold=1))

    def _wall_times(self, after: datetime) -> Iterator[datetime]:
        return CronSim(self._expression, after)


def zone_named(name: str) -> ZoneInfo | None:
    """Returns the zone with this IANA name, or None.

    Does not accept `localtime`, which would mean a different zone on every broker.
    """
    return ZoneInfo(name) if name in _zone_names() else None


@cache
def _zone_names() -> frozenset[str]:
    return frozenset(files("tzdata").joinpath("zones").read_text().split())


def _parsed(expression: str) -> CronSim:
    """Parses the expression. Raises CronError if it is invalid or never fires.

    cronsim searches 50 years ahead. Even a 29 February on a Monday occurs within that time.
    """
    fields = expression.split()
    if len(fields) != 5:
        raise CronError(f"cron must have five fields ({', '.join(_FIELDS)}), or be one of {', '.join(MACROS)}")
    try:
        parsed = CronSim(expression, _ANY_DAY)
    except CronSimError:
        raise CronError(_invalid_detail(fields)) from None
    if next(parsed, None) is None:
        raise CronError(_NEVER_RUNS)
    return parsed


def _invalid_detail(fields: list[str]) -> str:
    """Returns an error text that names the first invalid field of an expression.

    If each field is valid on its own, the text says that no date matches all fields. An example is
    30 February.
    """
    for index, (name, allowed) in enumerate(_FIELDS.items()):
        try:
            CronSim(" ".join(["*"] * index + [fields[index]] + ["*"] * (4 - index)), _ANY_DAY)
        except CronSimError:
            return f"cron: the {name} must be {allowed}, alone, in a list (1,3), in a range (1-3) or with a step (*/3)"
    return _NEVER_RUNS


def _wall_time(instant: datetime, zone: ZoneInfo) -> datetime:
    """Returns the wall-clock time at an instant, without its zone."""
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def _to_instant(wall_time: datetime, zone: ZoneInfo, fold: int = 0) -> datetime | None:
    """Returns the first instant (fold 0) or the last (fold 1) of a wall-clock time.

    Returns None if the clock skips that time.
    """
    instant = wall_time.replace(tzinfo=zone, fold=fold).astimezone(UTC)
    return instant if _wall_time(instant, zone) == wall_time else None


def _to_instants(wall_times: Iterable[datetime], zone: ZoneInfo, *, fold: int) -> Iterator[datetime]:
    return (instant for wall_time in wall_times if (instant := _to_instant(wall_time, zone, fold)) is not None)


def _time_between_passes(wall_time: datetime, zone: ZoneInfo) -> timedelta:
    """Returns the time between the first and the second occurrence of a wall-clock time.

    Returns zero for a wall-clock time that occurs once, as on most days.
    """
    first, last = (wall_time.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    return last - first


def _jump_instant(wall_time: datetime, zone: ZoneInfo) -> datetime:
    """Finds the instant at which the clock skips this wall-clock time, by bisection.

    The skipped time can be converted with two UTC offsets, and the jump is between the results.
    With the offset from before the jump (fold 0) the result is after the jump. With the offset from
    after the jump (fold 1) the result is before the jump.
    """
    after, before = (wall_time.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    offset = before.astimezone(zone).utcoffset()
    while after - before > timedelta(seconds=1):
        middle = before + (after - before) // timedelta(seconds=2) * timedelta(seconds=1)
        if middle.astimezone(zone).utcoffset() == offset:
            before = middle
        else:
            after = middle
    return after
