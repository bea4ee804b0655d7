"""How many jobs a due schedule makes now, and when it is due again. Pure."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import chain, islice, takewhile
from typing import NamedTuple, assert_never

from app.schedules.schemas import Misfire
from app.schedules.timing import TICK, Timing

GRACE = timedelta(seconds=60)  # a run that is later than this was missed
MOST = 100  # jobs of one schedule in one transaction


class Plan(NamedTuple):
    """`missed`: some runs were more than a little late, whatever becomes of them. `more`: there were too many for one transaction."""

    jobs: int
    next_run_at: datetime | None
    missed: bool = False
    more: bool = False


def plan(timing: Timing, due: datetime, now: datetime, misfire: Misfire) -> Plan:
    """`due` is the first run that nobody has fired yet, and not after `now`."""
    missed = due < now - GRACE
    match misfire:
        case Misfire.SKIP:
            return Plan(_timely(timing, due, now), timing.first_after(now), missed)
        case Misfire.ONCE:
            return Plan(_timely(timing, due, now) or 1, timing.first_after(now), missed)
        case Misfire.ALL:
            return _all(timing, due, now)._replace(missed=missed)
        case _:
            assert_never(misfire)


def _timely(timing: Timing, due: datetime, now: datetime) -> int:
    """Runs that are due and not late. They also stand in for the missed ones that `once` would fire one job for."""
    in_grace = _until(now, timing.after(max(due, now - GRACE - TICK)))
    return int(due >= now - GRACE) + sum(1 for _ in in_grace)


def _all(timing: Timing, due: datetime, now: datetime) -> Plan:
    """What does not fit into one transaction stays due, so that other schedules get their turn in between."""
    runs = list(islice(chain([due], _until(now, timing.after(due))), MOST + 1))
    if len(runs) > MOST:
        return Plan(MOST, runs[MOST], more=True)
    return Plan(len(runs), timing.first_after(now))


def _until(now: datetime, runs: Iterator[datetime]) -> Iterator[datetime]:
    return takewhile(lambda run: run <= now, runs)
