"""Compares responses with the audit log, without tolerance, because both use the machine's clock.
Pure.

A change is recorded between the start of its call and the response, and before its commit. After
a response with an unknown outcome the broker may still be working, so such a call has no end.
"""

from collections import defaultdict
from collections.abc import Iterator
from math import inf

from tests.chaos.facts import Facts, Lease, LeaseCall
from tests.chaos.transitions import GONE, Transition

ROUNDED = 0.001  # seconds by which a time in a response may differ from the stored one


def w7_responses_match_the_audit_log(facts: Facts) -> list[str]:
    """Acknowledged changes are recorded before the response; recorded changes were requested and
    accepted."""
    if not facts.transitions:
        return []
    return [
        *_stored(facts),
        *_leases(facts),
        *_settlements(facts),
        *_unrequested(facts),
        *_unrequested_extensions(facts),
        *_cancels(facts),
    ]


def _stored(facts: Facts) -> Iterator[str]:
    created = {id: steps[0].row.at for id, steps in facts.transitions.items() if steps[0].old == GONE}
    for invoke, result in facts.calls:
        if invoke.f == "enqueue" and result is not None and result.type == "ok":
            for item in result.items:
                if created.get(item.id, inf) > result.t1:
                    yield f"acknowledged before it was stored: {item.key} ({item.id})"


def _leases(facts: Facts) -> Iterator[str]:
    claims = {
        step.row.id + step.row.token: step.row
        for steps in facts.transitions.values()
        for step in steps
        if step.is_claim
    }
    until = _lease_ends(facts)
    for key, lease in facts.leases.items():
        row = claims.get(key)
        if row is None or row.at > lease.t1:
            yield f"response has a lease that is not stored: {lease.job} delivery {lease.deliveries}"
        elif (row.deliveries, row.attempt) != (lease.deliveries, lease.attempt):
            yield (
                f"response has delivery {lease.deliveries}, attempt {lease.attempt}, "
                f"stored {row.deliveries}, {row.attempt}: {lease.job}"
            )
        for lease_call in lease.lease_calls:
            if lease_call.f == "heartbeat" and lease_call.accepted and not _extended(until[key], lease_call):
                yield f"response has an extension that is not stored: {lease.job} delivery {lease.deliveries}"


def _lease_ends(facts: Facts) -> dict[str, list[tuple[float, float]]]:
    """Returns by lease when its end was set, and to which time."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for steps in facts.transitions.values():
        for step in steps:
            if step.new == "running":
                found[step.row.id + step.row.token].append((step.row.at, step.row.lease_until))
    return found


def _extended(ends: list[tuple[float, float]], lease_call: LeaseCall) -> bool:
    return any(at <= lease_call.t1 and abs(end - lease_call.item.lease_until) <= ROUNDED for at, end in ends)


def _settlements(facts: Facts) -> Iterator[str]:
    settled = {
        step.row.id + step.row.token: step for steps in facts.transitions.values() for step in steps if step.settlement
    }
    for key, lease in facts.leases.items():
        for lease_call in lease.settlements():
            step = settled.get(key)
            if not lease_call.accepted:
                continue
            if step is None or not _matches(step, lease_call):
                yield (
                    f"response says {lease_call.item.status}, but it is not: "
                    f"{lease_call.item.outcome} of {lease.job} delivery {lease.deliveries}"
                )
            elif (
                lease_call.item.state
                and lease_call.item.status == "settled"
                and lease_call.item.state != step.new.replace("pending", "ready")
            ):
                yield (
                    f"response says {lease_call.item.state}, stored {step.new}: {lease.job} delivery {lease.deliveries}"
                )


def _matches(step: Transition, lease_call: LeaseCall) -> bool:
    if step.settlement != lease_call.item.outcome or step.row.at > lease_call.t1:
        return False
    return lease_call.item.status == "already_settled" or step.row.at >= lease_call.t0


def _unrequested(facts: Facts) -> Iterator[str]:
    """Finds settlements that no worker requested, or that were rejected."""
    for id, steps in facts.transitions.items():
        for step in steps:
            if step.settlement and not _was_requested(facts.leases.get(id + step.row.token), step):
                yield f"not requested, or rejected: {step.settlement} of {id} delivery {step.row.deliveries}"


def _unrequested_extensions(facts: Facts) -> Iterator[str]:
    """Finds leases with a new end that no heartbeat requested, or whose heartbeat was rejected."""
    for id, steps in facts.transitions.items():
        for step in steps:
            if step.before is None or step.old != "running" or step.new != "running":
                continue
            lease = facts.leases.get(id + step.row.token)
            calls = [call for call in lease.lease_calls if call.f == "heartbeat"] if lease else []
            if step.row.lease_until != step.before.lease_until and not any(
                call.t0 <= step.row.at and (call.unknown or (call.accepted and step.row.at <= call.t1))
                for call in calls
            ):
                yield f"not requested, or rejected: heartbeat of {id} delivery {step.row.deliveries}"


def _was_requested(lease: Lease | None, step: Transition) -> bool:
    lease_calls = (
        [lease_call for lease_call in lease.settlements() if lease_call.item.outcome == step.settlement]
        if lease
        else []
    )
    return _may_have_made(lease_calls, step)


def _may_have_made(lease_calls: list[LeaseCall], step: Transition) -> bool:
    return any(
        lease_call.t0 <= step.row.at <= (inf if lease_call.unknown else lease_call.t1)
        for lease_call in lease_calls
        if lease_call.unknown or lease_call.accepted
    )


def _cancels(facts: Facts) -> Iterator[str]:
    """An accepted cancel has finished the job, or has requested cancellation of its run; no job is
    cancelled without a request."""
    for invoke, result in facts.calls:
        if invoke.f == "cancel" and result is not None and result.type == "ok":
            for item in result.items or invoke.items:
                if not _is_stopped(facts.transitions.get(item.id, []), invoke.t0, result.t1):
                    yield f"response says cancelled, but it is not: {item.id}"
    for id, steps in facts.transitions.items():
        if (
            steps[-1].new == "cancelled"
            and steps[-1].row.reason == "cancelled_by_user"
            and not _cancel_was_requested(facts, steps[-1])
        ):
            yield f"cancelled before the request: {id}"


def _is_stopped(steps: list[Transition], since: float, until: float) -> bool:
    """Returns whether the job is stopped at the end of a call; a replay before the call restarts it."""
    is_stopped = False
    for step in steps:
        if step.row.at <= until and step.after and (step.after.cancelling or step.new in ENDED):
            is_stopped = True
        elif step.row.at < since and step.old == "dead":
            is_stopped = False
    return is_stopped


ENDED = ("completed", "dead", "cancelled")


def _cancel_was_requested(facts: Facts, step: Transition) -> bool:
    return any(t0 <= step.row.at for t0 in facts.cancels.get(step.row.id, []))
