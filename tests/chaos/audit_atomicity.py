"""Rules for the audit log: calls are atomic, and removals and replays need a request. Pure."""

from collections import defaultdict
from collections.abc import Iterator
from math import inf

from tests.chaos.facts import Facts
from tests.chaos.history import Item, Op
from tests.chaos.transitions import GONE, Transition


def w8_calls_are_atomic(facts: Facts) -> list[str]:
    if not facts.transitions:
        return []
    return [*_batches(facts), *_removals(facts), *_replays(facts), *_children(facts)]


def _batches(facts: Facts) -> Iterator[str]:
    """The jobs of one call are stored in one transaction, in whatever lanes they are."""
    created = {id: steps[0].row.xid for id, steps in facts.transitions.items() if steps[0].old == GONE}
    for invoke, result in facts.calls:
        if invoke.f == "enqueue" and result is not None and result.type == "ok":
            parts = {created[item.id] for item in result.items if item.status == "created" and item.id in created}
            if len(parts) > 1:
                yield f"stored in {len(parts)} transactions: {invoke.key or result.items[0].key}"


def _removals(facts: Facts) -> Iterator[str]:
    """A waiting job is removed only by a purge of its queue. A dead letter is removed only by a
    purge, or by a replay that stores a job in another queue in the same transaction."""
    created = {steps[0].row.xid for steps in facts.transitions.values() if steps[0].old == GONE}
    for id, steps in facts.transitions.items():
        for step in steps:
            if step.new != GONE:
                continue
            queue = facts.final_state.queues[step.row.queue].name if step.row.queue in facts.final_state.queues else ""
            if (
                step.old == "dead"
                and step.row.xid in created
                and _was_requested(facts.items_of("replay").get(id, []), step)
            ):
                continue
            calls = facts.items_of("purge").get(id, []) if step.old == "dead" else facts.purges.get(queue, [])
            if not _was_requested(calls, step):
                yield f"removed without a request: {id}, {step.old}"


def _replays(facts: Facts) -> Iterator[str]:
    for id, steps in facts.transitions.items():
        for step in steps:
            if (
                step.old == "dead"
                and step.new != GONE
                and not _was_requested(facts.items_of("replay").get(id, []), step)
            ):
                yield f"replayed without a request: {id}"


def _was_requested(calls: list[tuple[Op, Op | None]], step: Transition) -> bool:
    """Returns whether a call may have made the change: started before, not rejected, response
    not before."""
    return any(
        invoke.t0 <= step.row.at <= (result.t1 if result is not None and result.type == "ok" else inf)
        for invoke, result in calls
        if result is None or result.type != "fail"
    )


def _children(facts: Facts) -> Iterator[str]:
    """A job waits until all parents are completed, or finished if its on_parent_failure is `run`.

    Otherwise a failed parent cancels it."""
    ends: dict[str, list[Transition]] = defaultdict(list)
    for id, steps in facts.transitions.items():
        ends[id] = [step for step in steps if step.new in ("completed", "dead", "cancelled", GONE)]
    ids = {steps[0].row.key: id for id, steps in facts.transitions.items()}  # also of calls without a response
    ids |= {key: item.id for key, item in facts.acknowledged.items()}
    for key, id in ids.items():
        request = facts.requested.get(key)
        parents = [ids[parent] for parent in request.depends_on if parent in ids] if request else []
        steps = facts.transitions.get(id, []) if parents else []
        unblocked = next((step for step in steps if step.new != "blocked"), None)
        if (
            request is not None
            and unblocked is not None
            and (violation := _too_soon(request, unblocked, [ends[parent] for parent in parents]))
        ):
            yield f"{violation}: {id}"


def _too_soon(request: Item, unblocked: Transition, parents: list[list[Transition]]) -> str:
    before = [[end for end in ends if end.row.n < unblocked.row.n] for ends in parents]
    if unblocked.new == "cancelled" and unblocked.row.reason == "dependency_failed":
        failed = any(end.new != "completed" for ends in before for end in ends)
        return "" if failed and request.on_parent_failure != "run" else "cancelled, but no parent has failed"
    if unblocked.new in ("cancelled", "dead", GONE):
        return ""
    finished = [any(request.on_parent_failure == "run" or end.new == "completed" for end in ends) for ends in before]
    return "" if all(finished) else "ready before its parents had finished"
