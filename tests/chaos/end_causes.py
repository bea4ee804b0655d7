"""Invariant I13: every end of a job has its cause in the history: dead letters, cancels, results.

Pure."""

from collections.abc import Iterator

from tests.chaos.facts import CLOCK_TOLERANCE, Facts, Lease
from tests.chaos.final_state import StoredJob
from tests.chaos.safety import attempt_increments
from tests.chaos.transition_rules import MAX_CRASHES, MAX_DELIVERIES


def i13_every_end_has_a_cause(facts: Facts) -> list[str]:
    dead = [
        f"dead as {row.reason}, but {violation}: {row.id}"
        for row in facts.final_state.stored
        if row.state == "dead"
        for violation in _dead_letter_violations(facts, row)
    ]
    return [*dead, *_cancel_violations(facts), *_result_violations(facts)]


# Dead letters


def _dead_letter_violations(facts: Facts, row: StoredJob) -> Iterator[str]:
    leases = facts.by_job.get(row.id, [])
    unknown = row.deliveries - len({lease.deliveries for lease in leases})  # deliveries whose response was lost
    if row.reason == "attempts_exhausted":
        used = sum(_used_attempt(facts, row, lease) for lease in leases) + unknown
        if min(row.attempt, used) < row.max_attempts:
            yield f"{min(row.attempt, used)} of {row.max_attempts} attempts were used"
    elif row.reason == "poison":
        crashes = sum(_may_have_expired(facts, row, lease) for lease in leases) + unknown
        if min(row.crashes, crashes) < MAX_CRASHES:
            yield f"{min(row.crashes, crashes)} leases expired"
    elif row.reason == "not_retryable":
        if not any(not lease_call.item.retryable for lease in leases for lease_call in lease.possibly_accepted("fail")):
            yield "its worker did not report it"
    elif row.reason == "expired":
        yield from _start_deadline_violations(facts, row, leases)
    elif row.reason == "undeliverable":
        if row.deliveries < MAX_DELIVERIES:
            yield f"it was delivered {row.deliveries} times"
    else:
        yield "that is not a known reason"


def _used_attempt(facts: Facts, row: StoredJob, lease: Lease) -> bool:
    return 1 in attempt_increments(facts, lease) and (
        bool(lease.possibly_accepted("fail")) or _may_have_expired(facts, row, lease)
    )


def _may_have_expired(facts: Facts, row: StoredJob, lease: Lease) -> bool:
    """Returns whether the lease may have expired before a call of its worker and before the
    job's end."""
    if facts.clock_jumped(lease.t0, lease.latest_end):
        return True
    in_time = any(
        lease_call.accepted and lease_call.t1 < lease.earliest_end - CLOCK_TOLERANCE
        for lease_call in lease.settlements()
    )
    return not in_time and (not row.ended or lease.until <= row.ended + CLOCK_TOLERANCE)


def _start_deadline_violations(facts: Facts, row: StoredJob, leases: list[Lease]) -> Iterator[str]:
    """A job can miss its start deadline only before it runs. A worker that omitted it from a
    heartbeat, or released it, has not started it."""
    request = facts.requested.get(row.key)
    if request is None or not request.expires_at:
        yield "it has no expires_at"
    elif row.ended and row.ended < request.expires_at - CLOCK_TOLERANCE:
        yield f"{request.expires_at - row.ended:.3f} s before expires_at"
    elif not request.unique and (started := [lease for lease in leases if not lease.possibly_accepted("release")]):
        yield f"delivery {started[0].deliveries} had started it"


# Cancels


def _cancel_violations(facts: Facts) -> Iterator[str]:
    """After an accepted cancel the job is not delivered again; it is cancelled or, if it ran,
    completed."""
    for invoke, result in facts.calls:
        if invoke.f != "cancel" or result is None or result.type != "ok":
            continue
        for item in result.items:
            allowed = ("cancelled",) if item.state == "cancelled" else ("cancelled", "completed")
            for row in facts.stored.get(item.id, []):
                if row.state not in allowed:
                    yield f"cancel accepted, but it is {row.state}: {item.id}"
            for lease in facts.by_job.get(item.id, []):
                if facts.claimed_since(lease) > result.t1:
                    yield f"cancel accepted, then delivered: {item.id} delivery {lease.deliveries}"


# Results


def _result_violations(facts: Facts) -> Iterator[str]:
    """The stored result is that of the accepted completion, or of one whose response was lost."""
    for row in facts.final_state.stored:
        if row.state == "completed":
            lease_calls = [
                lease_call
                for lease in facts.by_job.get(row.id, [])
                for lease_call in lease.possibly_accepted("complete")
            ]
            request = {lease_call.item.result for lease_call in lease_calls if lease_call.accepted} or {
                lease_call.item.result for lease_call in lease_calls
            }
            if request and row.result not in request:
                yield f"stored result is not the accepted one: {row.id}"
            if facts.final_state.api_states and facts.final_state.results.get(row.id, "") != row.result:
                yield f"result of the API differs from the database: {row.id}"
