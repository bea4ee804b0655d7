"""Cron expressions in a time zone: pure, and right on the days on which clocks are set.

cronsim iterates over wall times without a zone and nothing else: given an aware datetime it loses runs on those days. What a wall time
is in UTC is decided here, in one of two ways:

- A schedule of fixed hours (a daily 01:30) follows the wall. A time that comes twice fires the first time only; one that the clock jumps
  over fires at the jump, together with whatever else fires there.
- A schedule of every hour (`*/30 * * * *`) follows real time: it fires whenever the clock shows a time that matches, in both passes.
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
_NEVER = "cron never fires: no date matches it"
_SOME_DAY = datetime(2000, 1, 1)  # noqa: DTZ001 (wall times have no zone)


class CronError(ValueError):
    """Not an expression that ever fires."""


class Cron:
    def __init__(self, expression: str, zone: ZoneInfo) -> None:
        self._expression = MACROS.get(expression.strip().lower(), expression)
        self._zone = zone
        self._every_hour = len(_parsed(self._expression).hours) == 24

    def after(self, instant: datetime) -> Iterator[datetime]:
        """The runs after an instant, in UTC. It ends where none comes for 50 years."""
        last = instant
        for run in self._every_pass(instant) if self._every_hour else self._once(instant):
            if run > last:
                yield run
                last = run

    def _once(self, instant: datetime) -> Iterator[datetime]:
        for wall in self._walls(_wall(instant, self._zone)):
            first = _instant(wall, self._zone)
            yield _jump(wall, self._zone) if first is None else first

    def _every_pass(self, instant: datetime) -> Iterator[datetime]:
        """In the first pass of an hour that comes twice, the second pass of times that have been is still to come."""
        wall = _wall(instant, self._zone)
        second = self._walls(wall - _fold(wall, self._zone))
        return heapq.merge(_instants(self._walls(wall), self._zone, fold=0), _instants(second, self._zone, fold=1))

    def _walls(self, after: datetime) -> Iterator[datetime]:
        return CronSim(self._expression, after)


def zone_named(name: str) -> ZoneInfo | None:
    """Only the names that IANA knows: a host's own `localtime` would mean something else to every broker."""
    return ZoneInfo(name) if name in _zone_names() else None


@cache
def _zone_names() -> frozenset[str]:
    return frozenset(files("tzdata").joinpath("zones").read_text().split())


def _parsed(expression: str) -> CronSim:
    """Tried once: cronsim gives up after 50 years, in which even a 29 February that is a Monday comes."""
    fields = expression.split()
    if len(fields) != 5:
        raise CronError(f"cron must have five fields ({', '.join(_FIELDS)}), or be one of {', '.join(MACROS)}")
    try:
        parsed = CronSim(expression, _SOME_DAY)
    except CronSimError:
        raise CronError(_why(fields)) from None
    if next(parsed, None) is None:
        raise CronError(_NEVER)
    return parsed


def _why(fields: list[str]) -> str:
    """If each field is right by itself, it is all of them together that nothing matches: 30 February."""
    for place, (name, allowed) in enumerate(_FIELDS.items()):
        try:
            CronSim(" ".join(["*"] * place + [fields[place]] + ["*"] * (4 - place)), _SOME_DAY)
        except CronSimError:
            return f"cron: the {name} must be {allowed}, alone, in a list (1,3), in a range (1-3) or with a step (*/3)"
    return _NEVER


def _wall(instant: datetime, zone: ZoneInfo) -> datetime:
    """What the clock shows."""
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def _instant(wall: datetime, zone: ZoneInfo, fold: int = 0) -> datetime | None:
    """When the clock shows it for the first (or last) time; None if it never does."""
    instant = wall.replace(tzinfo=zone, fold=fold).astimezone(UTC)
    return instant if _wall(instant, zone) == wall else None


def _instants(walls: Iterable[datetime], zone: ZoneInfo, *, fold: int) -> Iterator[datetime]:
    return (instant for wall in walls if (instant := _instant(wall, zone, fold)) is not None)


def _fold(wall: datetime, zone: ZoneInfo) -> timedelta:
    """How long after its first pass a time comes again; mostly nothing."""
    first, last = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    return last - first


def _jump(wall: datetime, zone: ZoneInfo) -> datetime:
    """The instant at which the clock jumps over this time: read with the offset of either side it lies on the other side."""
    after, before = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    shown = before.astimezone(zone).utcoffset()
    while after - before > timedelta(seconds=1):
        middle = before + (after - before) // timedelta(seconds=2) * timedelta(seconds=1)
        if middle.astimezone(zone).utcoffset() == shown:
            before = middle
        else:
            after = middle
    return after
