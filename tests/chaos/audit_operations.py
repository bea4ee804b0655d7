"""Compares the responses to an operator with the audit log: a purge removed the jobs, a replay made
them live again, a paused queue delivers nothing. Pure.
"""

from collections import defaultdict
from collections.abc import Iterator

from tests.chaos.facts import Facts
from tests.chaos.history import Op
from tests.chaos.queue_rules import pauses
from tests.chaos.transition_rules import WAITING
from tests.chaos.transitions import GONE, Transition

COMMIT_SECONDS = 1.0  # seconds from the record of a change to its commit


def w10_operations_take_effect(facts: Facts) -> list[str]:
    if not facts.transitions:
        return []
    return [*_purges(facts), *_dead_letter_purges(facts), *_replays(facts), *_paused(facts)]


def _accepted(facts: Facts, f: str) -> Iterator[tuple[Op, Op]]:
    for invoke, result in facts.calls:
        if invoke.f == f and result is not None and result.type == "ok":
            yield invoke, result


def _purges(facts: Facts) -> Iterator[str]:
    """A purge of a queue removes the jobs that wait in it from before the call to after it.

    A job that changes during the call may be locked, or have ended. One whose creation is later
    than the call by the database's clock, which may have jumped back, counts as a new one."""
    numbers = {rules.name: number for number, rules in facts.final_state.queues.items()}
    by_queue: dict[int, list[list[Transition]]] = defaultdict(list)
    for steps in facts.transitions.values():
        by_queue[steps[0].row.queue].append(steps)
    for invoke, result in _accepted(facts, "purge"):
        for steps in by_queue[numbers.get(invoke.queue, 0)]:
            is_new = facts.database_time(steps[0].row.at) > facts.database_time(invoke.t0)
            if not is_new and _state_during(steps, invoke.t0 - COMMIT_SECONDS, result.t1) in (*WAITING, "blocked"):
                yield f"purged, but still there: {steps[0].row.id} in {invoke.queue}"


def _dead_letter_purges(facts: Facts) -> Iterator[str]:
    """A purge of dead letters removes them. The operator had them from a list, so they were
    committed."""
    for invoke, result in _accepted(facts, "purge"):
        for item in invoke.items:
            if _state_during(facts.transitions.get(item.id, []), invoke.t0, result.t1) == "dead":
                yield f"purged, but still there: {item.id}, dead"


def _state_during(steps: list[Transition], since: float, until: float) -> str:
    """Returns the state that a job has from `since` to `until`; none if it may have changed."""
    known = [step for step in steps if step.row.transaction_at <= until]
    return known[-1].new if known and known[-1].row.at < since else GONE


def _replays(facts: Facts) -> Iterator[str]:
    """A replay makes each dead letter of the response live again, or stores a new job for it."""
    for invoke, result in _accepted(facts, "replay"):
        for item in result.items:
            steps = facts.transitions.get(item.id, [])
            if not any(_is_replay(step) and invoke.t0 <= step.row.at <= result.t1 for step in steps):
                yield f"response says replayed, but it is not: {item.id}"


def _is_replay(step: Transition) -> bool:
    return (step.old == "dead" and step.new != GONE) or (step.old == GONE and bool(step.row.replayed_from))


def _paused(facts: Facts) -> Iterator[str]:
    """No claim begins in a paused queue, also not for a call that started before. A broker in a
    fault may claim late by the rules that it read in time."""
    names = {number: rules.name for number, rules in facts.final_state.queues.items()}
    paused: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for queue, since, until in pauses(facts):
        paused[queue].append((since, until))
    for steps in facts.transitions.values():
        for since, until in paused.get(names.get(steps[0].row.queue, ""), ()):
            for step in steps:
                row = step.row
                if (
                    step.is_claim
                    and since < row.transaction_at
                    and row.at < until
                    and not facts.fault_active(row.at, row.at)
                ):
                    yield f"claimed while {names[row.queue]} was paused: {row.id} delivery {row.deliveries}"
