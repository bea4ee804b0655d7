"""Why jobs were handed out again. Not a verdict: leases that were not respected are I5's. Pure."""

from collections import Counter

from tests.chaos.facts import Facts, Lease


def redelivery_causes(facts: Facts) -> Counter[str]:
    """Each hand-out that was not a job's last, by what became of it."""
    found: Counter[str] = Counter()
    for row in facts.final_state.stored:
        leases = {lease.deliveries: lease for lease in facts.by_job.get(row.id, [])}
        found.update(_redelivery_cause(facts, leases.get(delivery)) for delivery in range(1, row.deliveries))
    return found


def _redelivery_cause(facts: Facts, lease: Lease | None) -> str:
    if lease is None:
        return "response lost"
    if lease.possible_requeues():
        return "requeued"
    if not any(lease_call.t0 < lease.latest_end for lease_call in lease.settlements()):
        return "worker silent"
    refused = any(lease_call.type != "ok" for lease_call in lease.settlements())
    return "fault" if refused or facts.fault_active(lease.t0, lease.latest_end) else "unexplained"
