"""Rare operations are counted if they were done."""

from collections.abc import Sequence
from itertools import count
from typing import Any

from msgspec.structs import replace

from tests.chaos.facts import Facts
from tests.chaos.final_state import FinalState
from tests.chaos.history import Item, Kind, Op
from tests.chaos.operation_counts import RARE_OPERATIONS, count_operations
from tests.chaos.options import Options
from tests.chaos.workload import MOVED, PAUSED, PURGED
from tests.table import table

JOBS = [Item(id="a")]
_calls = count(1)

Call = tuple[Op, Op]


def call(
    f: str, kind: Kind = "ok", *, sent: Sequence[Item] = (), got: Sequence[Item] = (), t0: float = 1.0, **fields: Any
) -> Call:
    """The invocation of an operation, by HTTP unless `via` is -1, and its result."""
    place = {"via": 0, **fields}
    invocation = Op(f=f, type="invoke", call=str(next(_calls)), proc="p", t0=t0, items=list(sent), **place)
    return invocation, replace(invocation, type=kind, t1=t0 + 0.1, items=list(got))


def counted(*calls: Call) -> dict[str, int]:
    ops = [op for pair in calls for op in pair]
    return dict(count_operations(Facts(ops, [], FinalState(stored=[]), Options())))


DONE = {
    "replay": [call("replay", sent=JOBS, got=JOBS)],
    "move": [call("replay", sent=JOBS, got=JOBS, queue=MOVED)],
    "purge of a queue": [call("purge", queue=PURGED)],
    "purge of dead letters": [call("purge", sent=JOBS)],
    "pause": [call("pause", queue=PAUSED)],
    "revoke": [call("revoke", sent=JOBS)],
    "holds_all": [call("settle", "info", sent=JOBS, via=-1)],
    "settle inside a claim": [call("claim", got=JOBS), call("settle", sent=JOBS, got=JOBS)],
    "SQL enqueue": [call("enqueue", sent=JOBS, got=JOBS, via=-1)],
}


def test_each_rare_operation_is_counted() -> None:
    assert {name: counted(*calls) for name, calls in DONE.items()} == {name: {name: 1} for name in RARE_OPERATIONS}


@table(
    "calls",
    [
        [call("replay", "fail", sent=JOBS)],
        [call("replay", sent=JOBS)],
        [call("purge", "info", queue=PURGED)],
        [call("pause", "fail", queue=PAUSED)],
        [call("resume", queue=PAUSED)],
        [call("revoke", "info", sent=JOBS)],
        [call("settle", "info", via=-1)],
        [call("claim", t0=1.0), call("settle", sent=JOBS, got=JOBS, t0=2.0)],
        [call("claim", "info"), call("settle", "info", sent=JOBS)],
        [call("enqueue", sent=JOBS, got=JOBS)],
        [call("enqueue", "fail", sent=JOBS, via=-1)],
    ],
)
def test_operation_that_was_not_done_is_not_counted(calls: list[Call]) -> None:
    assert counted(*calls) == {}
