"""The causes of redeliveries.

This is no invariant: overlapping leases are a violation of I5. Pure."""

from collections import Counter

from tests.chaos.facts import Facts, Lease


def redelivery_causes(facts: Facts) -> Counter[str]:
    """Counts the deliveries that were not the last of their job, by their end."""
    counts: Counter[str] = Counter()
    for row in facts.final_state.stored:
        leases = {lease.deliveries: lease for lease in facts.by_job.get(row.id, [])}
        counts.update(_redelivery_cause(facts, leases.get(delivery)) for delivery in range(1, row.deliveries))
    return counts


def _redelivery_cause(facts: Facts, lease: Lease | None) -> str:
    if lease is None:
        return "response lost"
    if lease.possible_requeues():
        return "requeued"
    if not any(lease_call.t0 < lease.latest_end for lease_call in lease.settlements()):
        return "worker silent"
    rejected = any(lease_call.type != "ok" for lease_call in lease.settlements())
    return "fault" if rejected or facts.fault_active(lease.t0, lease.latest_end) else "unexplained"
