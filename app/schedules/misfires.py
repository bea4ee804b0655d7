"""How many jobs a due schedule makes now, and when it is due again. Pure."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import chain, islice, takewhile
from typing import NamedTuple, assert_never

from app.schedules.recurrence import TICK, Recurrence
from app.schedules.schemas import Misfire

GRACE = timedelta(seconds=60)  # a run that is later than this was missed
MAX_RUNS = 100  # jobs of one schedule in one transaction


class MisfirePlan(NamedTuple):
    """`missed`: some runs were more than a little late, whatever becomes of them. `more`: there were too many for one transaction."""

    jobs: int
    next_run_at: datetime | None
    missed: bool = False
    more: bool = False


def plan(timing: Recurrence, due: datetime, now: datetime, misfire: Misfire, most: int = MAX_RUNS) -> MisfirePlan:
    """`due` is the first run that nobody has fired yet, and not after `now`."""
    missed = due < now - GRACE
    match misfire:
        case Misfire.SKIP:
            return MisfirePlan(int(_timely(timing, due, now)), timing.first_after(now), missed)
        case Misfire.ONCE:
            return MisfirePlan(1, timing.first_after(now), missed)
        case Misfire.ALL:
            return _all(timing, due, now, most)._replace(missed=missed)
        case _:
            assert_never(misfire)


def _timely(timing: Recurrence, due: datetime, now: datetime) -> bool:
    """Whether the last run that is due is not late. Those before it have been missed: nobody wants a burst of them."""
    return due >= now - GRACE or any(True for _ in _until(now, timing.after(now - GRACE - TICK)))


def _all(timing: Recurrence, due: datetime, now: datetime, most: int) -> MisfirePlan:
    """What does not fit into one transaction stays due, so that other schedules get their turn in between."""
    runs = list(islice(chain([due], _until(now, timing.after(due))), most + 1))
    if len(runs) > most:
        return MisfirePlan(most, runs[most], more=True)
    return MisfirePlan(len(runs), timing.first_after(now))


def _until(now: datetime, runs: Iterator[datetime]) -> Iterator[datetime]:
    return takewhile(lambda run: run <= now, runs)
