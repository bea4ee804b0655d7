"""How often the clients of a run did each rare operation: an invariant that nothing exercises is
not checked."""

from collections import Counter

from tests.chaos.facts import Facts
from tests.chaos.history import Op
from tests.chaos.workload import MOVED

BY_HTTP = 0  # the smallest number of a broker in a history; SQL and omissions have none

RARE_OPERATIONS = {
    "replay",
    "move",
    "purge of a queue",
    "purge of dead letters",
    "pause",
    "revoke",
    "holds_all",
    "settle inside a claim",
    "SQL enqueue",
}


def count_operations(facts: Facts) -> Counter[str]:
    """Counts the rare operations that were done."""
    claims = {(op.proc, op.t0) for op, _ in facts.calls if op.f == "claim"}
    names = (_name_of(op, result, claims) for op, result in facts.calls if result is not None)
    return Counter(name for name in names if name is not None)


def _name_of(invocation: Op, result: Op, claims: set[tuple[str, float]]) -> str | None:
    """Returns the name of a rare operation.

    A lease that a worker omits from a heartbeat with `holds_all` is a release of unknown outcome.
    The parts of one call have the same time."""
    is_http = invocation.via >= BY_HTTP
    if invocation.f == "settle" and not is_http and invocation.items:
        return "holds_all"
    if result.type != "ok":
        return None
    if invocation.f == "settle":
        return "settle inside a claim" if (invocation.proc, invocation.t0) in claims else None
    if invocation.f == "enqueue":
        return None if is_http else "SQL enqueue"
    if invocation.f == "replay":
        return None if not result.items else "move" if invocation.queue == MOVED else "replay"
    if invocation.f == "purge":
        return "purge of dead letters" if invocation.items else "purge of a queue"
    return invocation.f if invocation.f in ("pause", "revoke") else None
