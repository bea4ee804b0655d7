"""Invariant I14: an operator's change is in effect in every broker soon after the response. Pure.

The configuration of a broker is at most FRESH_SECONDS old. So the change is in effect for a call
that starts more than FRESH_SECONDS after the response, however long the call takes.
"""

from collections.abc import Iterator
from math import inf

from app.db.config_versions import FRESH_SECONDS
from tests.chaos.facts import Facts


def i14_changes_are_in_effect(facts: Facts) -> list[str]:
    return [*_paused(facts), *_revoked(facts)]


def _paused(facts: Facts) -> Iterator[str]:
    """A claim that starts while a queue is paused gets no job of it, unless a call to resume the
    queue starts before the claim ends."""
    for queue, since, until in pauses(facts):
        for lease in facts.leases.values():
            if lease.queue == queue and facts.claimed_since(lease) > since and lease.t1 < until:
                yield f"delivered while {queue} was paused: {lease.job} delivery {lease.deliveries}"


def pauses(facts: Facts) -> Iterator[tuple[str, float, float]]:
    """Yields queues and when they were certainly paused: from the response to the next resume
    call."""
    since: dict[str, float] = {}
    for op in facts.ops:  # ordered by the times of responses and of request starts
        if op.f == "pause" and op.type == "ok":
            since.setdefault(op.queue, op.t1 + FRESH_SECONDS)
        if op.f == "resume" and op.type == "invoke" and op.queue in since:
            yield op.queue, since.pop(op.queue), op.t0
    yield from ((queue, begin, inf) for queue, begin in since.items())


def _revoked(facts: Facts) -> Iterator[str]:
    """A revoked API key is rejected."""
    revocations = [op for op in facts.ops if op.f == "revoke" and op.type == "ok"]
    revoked = {item.id: op.t1 + FRESH_SECONDS for op in reversed(revocations) for item in facts.request_items(op)}
    for op in facts.ops:
        if op.type == "ok" and op.t0 > revoked.get(op.caller, inf):
            yield f"a call with a revoked API key succeeded: {op.f} {op.call}"
