"""Why jobs were handed out again. Not a verdict: leases that were not respected are I5's. Pure."""

from collections import Counter

from tests.chaos.facts import Facts, Lease


def causes(facts: Facts) -> Counter[str]:
    """Each hand-out that was not a job's last, by what became of it."""
    found: Counter[str] = Counter()
    for row in facts.final.kept:
        leases = {lease.deliveries: lease for lease in facts.by_job.get(row.id, [])}
        found.update(_cause(facts, leases.get(delivery)) for delivery in range(1, row.deliveries))
    return found


def _cause(facts: Facts, lease: Lease | None) -> str:
    if lease is None:
        return "answer lost"
    if lease.given_back():
        return "given back"
    if not any(word.t0 < lease.over for word in lease.settlements()):
        return "holder silent"
    refused = any(word.type != "ok" for word in lease.settlements())
    return "fault" if refused or facts.troubled(lease.t0, lease.over) else "no cause"
