"""Invariant I13: every end has its cause in the history. Dead letters, cancels and results, as clients saw them. Pure."""

from collections.abc import Iterator

from tests.chaos.facts import SLACK, Facts, Lease
from tests.chaos.final import Kept
from tests.chaos.safety import rises
from tests.chaos.transition_rules import MAX_CRASHES, MAX_DELIVERIES


def i13_every_end_has_a_cause(facts: Facts) -> list[str]:
    dead = [
        f"dead as {row.reason}, but {breach}: {row.id}"
        for row in facts.final.kept
        if row.state == "dead"
        for breach in _deaths(facts, row)
    ]
    return [*dead, *_cancels(facts), *_results(facts)]


# Dead letters


def _deaths(facts: Facts, row: Kept) -> Iterator[str]:
    leases = facts.by_job.get(row.id, [])
    unheard = row.deliveries - len({lease.deliveries for lease in leases})  # deliveries whose response was lost
    if row.reason == "attempts_exhausted":
        spent = sum(_spent(facts, row, lease) for lease in leases) + unheard
        if min(row.attempt, spent) < row.max_attempts:
            yield f"{min(row.attempt, spent)} of {row.max_attempts} attempts were spent"
    elif row.reason == "poison":
        crashes = sum(_ran_out(facts, row, lease) for lease in leases) + unheard
        if min(row.crashes, crashes) < MAX_CRASHES:
            yield f"{min(row.crashes, crashes)} leases ran out"
    elif row.reason == "not_retryable":
        if not any(not word.item.retryable for lease in leases for word in lease.heard("fail")):
            yield "its worker has not said so"
    elif row.reason == "expired":
        yield from _expiry(facts, row, leases)
    elif row.reason == "undeliverable":
        if row.deliveries < MAX_DELIVERIES:
            yield f"it was delivered {row.deliveries} times"
    else:
        yield "that is no reason"


def _spent(facts: Facts, row: Kept, lease: Lease) -> bool:
    return 1 in rises(facts, lease) and (bool(lease.heard("fail")) or _ran_out(facts, row, lease))


def _ran_out(facts: Facts, row: Kept, lease: Lease) -> bool:
    """Whether the lease may have expired before a call of its holder, and before the job died."""
    if facts.jumped(lease.t0, lease.over):
        return True
    in_time = any(word.accepted and word.t1 < lease.soonest - SLACK for word in lease.settlements())
    return not in_time and (not row.ended or lease.until <= row.ended + SLACK)


def _expiry(facts: Facts, row: Kept, leases: list[Lease]) -> Iterator[str]:
    """A job can only miss its start deadline before it runs: a worker that did not list it, or released it, has not begun it."""
    sent = facts.asked.get(row.key)
    if sent is None or not sent.expires_at:
        yield "it has no expires_at"
    elif row.ended and row.ended < sent.expires_at - SLACK:
        yield f"{sent.expires_at - row.ended:.3f} s before expires_at"
    elif not sent.unique and (begun := [lease for lease in leases if not lease.heard("release")]):
        yield f"delivery {begun[0].deliveries} had begun it"


# Cancels


def _cancels(facts: Facts) -> Iterator[str]:
    """An accepted cancel stands: the job is not delivered again, and ends as cancelled or, if it ran, completed."""
    for invoke, result in facts.calls:
        if invoke.f != "cancel" or result is None or result.type != "ok":
            continue
        for item in result.items:
            allowed = ("cancelled",) if item.state == "cancelled" else ("cancelled", "completed")
            for row in facts.kept.get(item.id, []):
                if row.state not in allowed:
                    yield f"cancel accepted, but it is {row.state}: {item.id}"
            for lease in facts.by_job.get(item.id, []):
                if facts.claimed_since(lease) > result.t1:
                    yield f"cancel accepted, then delivered: {item.id} delivery {lease.deliveries}"


# Results


def _results(facts: Facts) -> Iterator[str]:
    """The stored result is that of the accepted completion, or of one whose response was lost."""
    for row in facts.final.kept:
        if row.state == "completed":
            words = [word for lease in facts.by_job.get(row.id, []) for word in lease.heard("complete")]
            sent = {word.item.result for word in words if word.accepted} or {word.item.result for word in words}
            if sent and row.result not in sent:
                yield f"not the result that was accepted: {row.id}"
            if facts.final.told and facts.final.results.get(row.id, "") != row.result:
                yield f"the API gives another result than the database: {row.id}"
