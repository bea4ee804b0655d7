"""Order of delivery in the audit log: within a lane, and within a group that runs one job at a time.
Pure.

Jobs of a lane are ordered by priority, then by id, which is the order of the enqueues; jobs of a
group by id. No clock decides what a statement sees: its record has its snapshot. A job that a claim
passes over was ready by the claim's snapshot. Another transaction may have had it locked: the one
that changed it next, if it had begun before the claim was recorded.

One more kind of lock leaves no record: a statement that is about to make a job ready, too, locks it,
sees that it is ready, and leaves it. So the job must have been ready for SETTLED_SECONDS. Measured
in 6,000 jobs: 2 such locks, of 2 and 35 ms. In a fault they last as long as the fault.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf

from tests.chaos.audit_log import AuditRow
from tests.chaos.facts import Facts
from tests.chaos.transitions import GONE, Transition

SETTLED_SECONDS = 0.5

Place = tuple[int, str]  # of a job in the order: lower ones are first


@dataclass(frozen=True, slots=True, order=True)
class WaitingJob:
    """A job from one change to the next."""

    place: Place
    n: int  # number of the change since which it waits
    row: AuditRow = field(compare=False)
    left_at: float = field(compare=False)  # when the transaction of the next change began


class Snapshot:
    """Which transactions a statement saw: all before `xmax`, but the ones in progress."""

    def __init__(self, text: str) -> None:
        _, xmax, running = text.split(":")
        self._xmax = int(xmax)
        self._running = {int(xid) for xid in running.split(",") if xid}

    def sees(self, xid: int) -> bool:
        return xid < self._xmax and xid not in self._running


def w9_order_is_kept(facts: Facts) -> list[str]:
    return [*_lanes(facts), *_groups(facts)]


def _lanes(facts: Facts) -> Iterator[str]:
    """A claim takes the first ready jobs of a lane. Groups and fairness have an order of their own."""
    queues = {id for id, rules in facts.final_state.queues.items() if not rules.orders_by_group}
    for lane, jobs in _jobs_by(facts, lambda row: (row.queue, row.lane) if row.queue in queues else None).items():
        claims = [step.row for steps in jobs for step in steps if step.is_claim and step.old == "ready"]
        ready = [job for steps in jobs for job in _waiting(steps, lambda step: step.new == "ready", _by_priority)]
        for first, row in _passed_over(facts, ready, claims, _by_priority):
            if not first.row.expires_at or row.started_at < first.row.expires_at:
                yield f"passed over: {first.row.id} by {row.id}, change {row.n}, in {_name(facts, row)} lane {lane[1]}"


def _groups(facts: Facts) -> Iterator[str]:
    """With max_running_per_group 1 a job becomes ready when all older ones of its group have ended."""
    queues = {id for id, rules in facts.final_state.queues.items() if rules.max_running_per_group == 1}
    for group, jobs in _jobs_by(facts, lambda row: (row.queue, row.group_key) if row.queue in queues else None).items():
        admitted = [step.row for steps in jobs for step in steps if _is_admitted(step)]
        holding = [job for steps in jobs for job in _waiting(steps, _holds_its_group, _by_age)]
        for first, row in _passed_over(facts, holding, admitted, _by_age):
            yield f"ready before {first.row.id}: {row.id}, change {row.n}, in {_name(facts, row)} {group[1]}"


def _jobs_by(
    facts: Facts, key_of: Callable[[AuditRow], tuple[int, int | str] | None]
) -> dict[tuple[int, int | str], list[list[Transition]]]:
    found: dict[tuple[int, int | str], list[list[Transition]]] = defaultdict(list)
    for steps in facts.transitions.values():
        if (key := key_of(steps[0].row)) is not None:
            found[key].append(steps)
    return found


def _name(facts: Facts, row: AuditRow) -> str:
    return facts.final_state.queues[row.queue].name


def _by_priority(row: AuditRow) -> Place:
    return -row.priority, row.id


def _by_age(row: AuditRow) -> Place:
    return 0, row.id


def _is_admitted(step: Transition) -> bool:
    """Returns whether the change admits the job. A job that waited for its retry had its admission."""
    return step.new == "ready" and (
        step.old in (GONE, "pending") or (step.old in ("scheduled", "blocked") and not step.row.deliveries)
    )


def _holds_its_group(step: Transition) -> bool:
    """Returns whether younger jobs wait for the job: not while a delay keeps it from its first run."""
    return step.new in ("ready", "pending", "running") or (step.new == "scheduled" and step.row.deliveries > 0)


def _waiting(
    steps: list[Transition], waits: Callable[[Transition], bool], place_of: Callable[[AuditRow], Place]
) -> Iterator[WaitingJob]:
    for number, step in enumerate(steps):
        if waits(step):
            left_at = steps[number + 1].row.transaction_at if number + 1 < len(steps) else inf
            yield WaitingJob(place_of(step.row), step.row.n, step.row, left_at)


def _passed_over(
    facts: Facts, waiting: list[WaitingJob], chosen: list[AuditRow], place_of: Callable[[AuditRow], Place]
) -> Iterator[tuple[WaitingJob, AuditRow]]:
    """Yields the choices of a later job, with the first job that waited.

    Goes through them in the order of their records, with a heap of the waiting jobs."""
    todo = sorted(waiting, key=lambda job: job.n, reverse=True)
    heap: list[WaitingJob] = []
    for row in sorted(chosen, key=lambda row: row.n):
        while todo and todo[-1].n < row.n:
            heapq.heappush(heap, todo.pop())
        first = _first_that_waits(heap, row)
        is_passed_over = first is not None and first.place < place_of(row)
        if first is not None and is_passed_over and not facts.fault_active(row.transaction_at, row.at):
            yield first, row


def _first_that_waits(heap: list[WaitingJob], row: AuditRow) -> WaitingJob | None:
    """Returns the first job that the choice must have seen as waiting.

    A job whose next change has begun is removed for good: later choices were recorded later."""
    snapshot, later, found = Snapshot(row.snapshot), [], None
    while heap and found is None:
        job = heapq.heappop(heap)
        if job.left_at > row.at:
            later.append(job)
            is_settled = job.row.at < row.transaction_at - SETTLED_SECONDS
            found = job if is_settled and snapshot.sees(job.row.xid) else None
    for job in later:
        heapq.heappush(heap, job)
    return found
