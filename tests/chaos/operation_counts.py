"""How often a run did each operation that has a share of its own in the workload: an invariant that
nothing exercises is not checked."""

from collections import Counter
from collections.abc import Iterator

from tests.chaos.facts import Facts
from tests.chaos.history import Op
from tests.chaos.transitions import GONE, Transition
from tests.chaos.workload import FAIR, MOVED, RATED, WIDE

BY_HTTP = 0  # the smallest number of a broker in a history; SQL and omissions have none

OF_CALLS = {
    "replay",
    "move",
    "purge of a queue",
    "purge of dead letters",
    "pause",
    "revoke",
    "rejected API key",
    "holds_all",
    "settle inside a claim",
    "settle inside a claim that waits",
    "SQL enqueue",
    "enqueue without a key",
    "replace",
}
OF_CHANGES = {
    "claim from a further lane",
    "claim of a child",
    "claim under a rate",
    "claim from a fair queue",
    "missed start deadline",
    "timeout",
}
OPERATIONS = OF_CALLS | OF_CHANGES


def count_operations(facts: Facts) -> Counter[str]:
    """Counts the operations that were done."""
    claims = {(op.proc, op.t0) for op, _ in facts.calls if op.f == "claim"}
    counts = Counter(
        name for op, result in facts.calls if result is not None for name in _names_of_call(op, result, claims)
    )
    counts.update(name for steps in facts.transitions.values() for step in steps for name in _names(facts, step))
    return counts


def _names_of_call(invocation: Op, result: Op, claims: set[tuple[str, float]]) -> Iterator[str]:
    """Yields the names of a call.

    A lease that a worker omits from a heartbeat with `holds_all` is a release of unknown outcome.
    The parts of one call have the same time."""
    is_http = invocation.via >= BY_HTTP
    if invocation.f == "settle" and not is_http and invocation.items:
        yield "holds_all"
    if result.status == 401:
        yield "rejected API key"
    if result.type != "ok":
        return
    if invocation.f == "settle" and (invocation.proc, invocation.t0) in claims:
        yield "settle inside a claim that waits" if invocation.waits else "settle inside a claim"
    elif invocation.f == "enqueue":
        yield from _names_of_enqueue(invocation, result)
    elif invocation.f == "replay" and result.items:
        yield "move" if invocation.queue == MOVED else "replay"
    elif invocation.f == "purge":
        yield "purge of dead letters" if invocation.items else "purge of a queue"
    elif invocation.f in ("pause", "revoke"):
        yield invocation.f


def _names_of_enqueue(invocation: Op, result: Op) -> Iterator[str]:
    if invocation.via < BY_HTTP:
        yield "SQL enqueue"
    elif not invocation.key:
        yield "enqueue without a key"
    for request, item in zip(invocation.items, result.items, strict=True):
        if request.on_conflict == "replace" and item.status == "duplicate":
            yield "replace"


def _names(facts: Facts, step: Transition) -> Iterator[str]:
    if step.new == "dead" and step.row.reason == "expired":
        yield "missed start deadline"
    if step.old == "running" and step.new not in ("running", GONE) and not step.settlement:
        yield from _names_of_lease_end(step)
    if step.is_claim:
        request = facts.requested.get(facts.transitions[step.row.id][0].row.key)
        rules = facts.final_state.queues.get(step.row.queue)
        names = {WIDE: "claim from a further lane", RATED: "claim under a rate", FAIR: "claim from a fair queue"}
        if rules is not None and rules.name in names and (rules.name != WIDE or step.row.lane):
            yield names[rules.name]
        if request is not None and request.depends_on:
            yield "claim of a child"


def _names_of_lease_end(step: Transition) -> Iterator[str]:
    """A run that exceeded its timeout costs its attempt, but is no crash."""
    before, after = step.before, step.after
    if before is None or after is None or not before.deadline or step.new not in ("scheduled", "dead"):
        return
    if (after.attempt, after.crashes) == (before.attempt, before.crashes):
        yield "timeout"
