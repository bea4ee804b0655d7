"""Compares responses with the witness's record, without tolerance, because both use the machine's clock. Pure.

A change is recorded between the beginning of its call and the response, and before its commit. After a response that leaves the outcome
unknown the broker may still be working, so such a call has no end.
"""

from collections import defaultdict
from collections.abc import Iterator
from math import inf

from tests.chaos.facts import Facts, Lease, Word
from tests.chaos.transitions import GONE, Transition

ROUNDED = 0.001  # seconds by which an instant in an answer may differ from the stored one


def w7_answers_are_true(facts: Facts) -> list[str]:
    """Every acknowledged change is recorded before its response; every recorded change was requested, and not refused."""
    if not facts.transitions:
        return []
    return [*_stored(facts), *_leases(facts), *_settlements(facts), *_unasked(facts), *_cancels(facts)]


def _stored(facts: Facts) -> Iterator[str]:
    made = {id: steps[0].row.at for id, steps in facts.transitions.items() if steps[0].old == GONE}
    for invoke, result in facts.calls:
        if invoke.f == "enqueue" and result is not None and result.type == "ok":
            for item in result.items:
                if made.get(item.id, inf) > result.t1:
                    yield f"acknowledged before it was stored: {item.key} ({item.id})"


def _leases(facts: Facts) -> Iterator[str]:
    begun = {
        step.row.id + step.row.token: step.row for steps in facts.transitions.values() for step in steps if step.claims
    }
    until = _lease_ends(facts)
    for key, lease in facts.leases.items():
        row = begun.get(key)
        if row is None or row.at > lease.t1:
            yield f"told of a lease that is not there: {lease.job} delivery {lease.deliveries}"
        elif (row.deliveries, row.attempt) != (lease.deliveries, lease.attempt):
            yield f"told delivery {lease.deliveries}, attempt {lease.attempt}, stored {row.deliveries}, {row.attempt}: {lease.job}"
        for word in lease.words:
            if word.f == "heartbeat" and word.accepted and not _extended(until[key], word):
                yield f"told of an extension that is not there: {lease.job} delivery {lease.deliveries}"


def _lease_ends(facts: Facts) -> dict[str, list[tuple[float, float]]]:
    """By lease: when its end was set, and to what."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for steps in facts.transitions.values():
        for step in steps:
            if step.new == "running":
                found[step.row.id + step.row.token].append((step.row.at, step.row.lease_until))
    return found


def _extended(ends: list[tuple[float, float]], word: Word) -> bool:
    return any(at <= word.t1 and abs(end - word.item.lease_until) <= ROUNDED for at, end in ends)


def _settlements(facts: Facts) -> Iterator[str]:
    settled = {
        step.row.id + step.row.token: step for steps in facts.transitions.values() for step in steps if step.settles
    }
    for key, lease in facts.leases.items():
        for word in lease.settlements():
            step = settled.get(key)
            if not word.accepted:
                continue
            if step is None or not _stands(step, word):
                yield f"told that it was {word.item.status}, and it was not: {word.item.outcome} of {lease.job} delivery {lease.deliveries}"
            elif (
                word.item.state
                and word.item.status == "settled"
                and word.item.state != step.new.replace("parked", "ready")
            ):
                yield f"told {word.item.state}, stored {step.new}: {lease.job} delivery {lease.deliveries}"


def _stands(step: Transition, word: Word) -> bool:
    if step.settles != word.item.outcome or step.row.at > word.t1:
        return False
    return word.item.status == "already_settled" or step.row.at >= word.t0


def _unasked(facts: Facts) -> Iterator[str]:
    """Settlements that no worker requested, or that were refused."""
    for id, steps in facts.transitions.items():
        for step in steps:
            if step.settles and not _was_asked(facts.leases.get(id + step.row.token), step):
                yield f"nobody asked for it, or it was refused: {step.settles} of {id} delivery {step.row.deliveries}"


def _was_asked(lease: Lease | None, step: Transition) -> bool:
    words = [word for word in lease.settlements() if word.item.outcome == step.settles] if lease else []
    return any(
        word.t0 <= step.row.at <= (inf if word.unknown else word.t1) for word in words if word.unknown or word.accepted
    )


def _cancels(facts: Facts) -> Iterator[str]:
    """An accepted cancel has ended the job, or has asked its worker to stop; no job is cancelled without a request."""
    stopped = {
        id: [step for step in steps if step.after and (step.after.cancelling or step.new in ENDED)]
        for id, steps in facts.transitions.items()
    }
    for invoke, result in facts.calls:
        if invoke.f == "cancel" and result is not None and result.type == "ok":
            for item in result.items or invoke.items:
                if not any(step.row.at <= result.t1 for step in stopped.get(item.id, [])):
                    yield f"told that it was cancelled, and it was not: {item.id}"
    for id, steps in facts.transitions.items():
        if (
            steps[-1].new == "cancelled"
            and steps[-1].row.reason == "cancelled_by_user"
            and not _asked_to_cancel(facts, steps[-1])
        ):
            yield f"cancelled before anybody asked: {id}"


ENDED = ("completed", "dead", "cancelled")


def _asked_to_cancel(facts: Facts, step: Transition) -> bool:
    return any(t0 <= step.row.at for t0 in facts.cancels.get(step.row.id, []))
