"""The operations of a run are counted if they were done."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from msgspec.structs import replace

from tests.chaos.audited_job import AuditedJob
from tests.chaos.facts import Facts
from tests.chaos.final_state import FinalState, QueueLimits
from tests.chaos.history import Item, Kind, Op
from tests.chaos.history_builder import HistoryBuilder
from tests.chaos.operation_counts import OF_CALLS, OF_CHANGES, OPERATIONS, count_operations
from tests.chaos.options import Options
from tests.chaos.workload import FAIR, MOVED, PAUSED, PURGED, RATED, WIDE, WORK
from tests.table import table

JOBS = [Item(id="a")]
REPLACING = [Item(key="a", unique="u", on_conflict="replace")]
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
    "settle inside a claim that waits": [call("claim", got=JOBS), call("settle", sent=JOBS, got=JOBS, waits=True)],
    "SQL enqueue": [call("enqueue", sent=JOBS, got=JOBS, via=-1)],
    "enqueue without a key": [call("enqueue", sent=JOBS, got=JOBS)],
    "replace": [call("enqueue", sent=REPLACING, got=[Item(id="a", status="duplicate")], key="k")],
    "rejected API key": [call("letters", "fail", status=401)],
}


def test_each_operation_of_a_client_is_counted() -> None:
    assert {name: counted(*calls) for name, calls in DONE.items()} == {name: {name: 1} for name in OF_CALLS}


QUEUES = {
    1: QueueLimits(name=WORK),
    2: QueueLimits(name=WIDE),
    3: QueueLimits(name=RATED),
    4: QueueLimits(name=FAIR),
}
CHANGES: dict[str, tuple[dict[str, Any], Callable[[AuditedJob], object]]] = {
    "claim from a further lane": ({"queue": 2, "lane": 3}, lambda job: job.enqueued().claimed(1)),
    "claim under a rate": ({"queue": 3}, lambda job: job.enqueued().claimed(1)),
    "claim from a fair queue": ({"queue": 4}, lambda job: job.enqueued().claimed(1)),
    "claim of a child": (
        {"key": "a", "sent": {"depends_on": ["b"]}},
        lambda job: job.enqueued(state="blocked").changed(1, "ready").claimed(2),
    ),
    "missed start deadline": ({}, lambda job: job.enqueued().moved(1, "dead", reason="expired")),
    "timeout": ({"deadline": 5.0}, lambda job: job.enqueued().claimed(1).changed(5, "scheduled")),
}


def changes_counted(fields: dict[str, Any], change: Callable[[AuditedJob], object]) -> dict[str, int]:
    history = HistoryBuilder()
    change(AuditedJob(history, **fields))
    counts = count_operations(history.facts(queues=QUEUES))
    return {name: count for name, count in counts.items() if name in OF_CHANGES}


def test_each_change_is_counted() -> None:
    assert {name: changes_counted(*made) for name, made in CHANGES.items()} == {name: {name: 1} for name in OF_CHANGES}


@table(
    "made",
    [
        ({}, lambda job: job.enqueued().claimed(1)),
        ({"queue": 2, "lane": 0}, lambda job: job.enqueued().claimed(1)),
        ({"queue": 4}, lambda job: job.enqueued()),
        ({"key": "a", "sent": {"depends_on": ["b"]}}, lambda job: job.enqueued(state="blocked")),
        ({}, lambda job: job.enqueued().claimed(1).dead_lettered(2)),
        ({"deadline": 5.0}, lambda job: job.enqueued().claimed(1).settled(5, "fail", "scheduled")),
        ({"deadline": 5.0}, lambda job: job.enqueued().claimed(1).requeued(5)),
        ({}, lambda job: job.enqueued().claimed(1).changed(5, "scheduled")),
    ],
)
def test_change_that_was_not_made_is_not_counted(
    made: tuple[dict[str, Any], Callable[[AuditedJob], object]],
) -> None:
    assert changes_counted(*made) == {}


def test_a_run_is_complete_only_with_each_operation() -> None:
    assert DONE.keys() | CHANGES.keys() == OPERATIONS


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
        [call("claim", "info"), call("settle", "info", sent=JOBS, waits=True)],
        [call("enqueue", sent=JOBS, got=JOBS, key="k")],
        [call("enqueue", "info", sent=JOBS)],
        [call("enqueue", sent=REPLACING, got=[Item(id="a", status="created")], key="k")],
        [call("enqueue", sent=JOBS, got=[Item(id="a", status="duplicate")], key="k")],
        [call("letters", "fail", status=403)],
        [call("enqueue", "fail", sent=JOBS, via=-1)],
    ],
)
def test_operation_that_was_not_done_is_not_counted(calls: list[Call]) -> None:
    assert counted(*calls) == {}
