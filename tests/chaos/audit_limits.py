"""Limits in the audit log, at every change: running jobs of a queue and of a group, the rate of a
queue, unfinished jobs of a unique key, jobs of one enqueue. Pure.

Changes are counted in the order of their records. A claim holds its lane lock until its commit,
so claims are in order. The end of a lease may be recorded before its commit, which makes the
count lower and never higher. The rate is counted by `started_at`, which the broker reads under
the lane lock.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

from tests.chaos.audit_log import AuditRow
from tests.chaos.facts import Facts
from tests.chaos.final_state import QueueLimits
from tests.chaos.transition_rules import LIVE
from tests.chaos.transitions import GONE, Transition


def w6_limits_are_kept(facts: Facts) -> list[str]:
    return _running(facts) + _rates(facts) + _unique(facts) + _copies(facts)


def _rates(facts: Facts) -> list[str]:
    found = []
    for queue, rules in facts.final_state.queues.items():
        if rules.rate is None:
            continue
        started = [
            step.row
            for steps in facts.transitions.values()
            for step in steps
            if step.is_claim and step.row.queue == queue
        ]
        started.sort(key=lambda row: row.started_at)
        for first, row in zip(started, started[rules.rate.limit :], strict=False):
            if row.started_at - first.started_at < rules.rate.per_seconds:
                found.append(
                    f"more than {rules.rate.limit} in {rules.rate.per_seconds} s in {rules.name}: "
                    f"{row.id}, change {row.n}"
                )
    return found


def _copies(facts: Facts) -> list[str]:
    """Finds a second job for one item of a request, even if one of them is gone at the end.

    A replay into another queue stores a new job, but removes the dead letter."""
    first = [steps[0].row for steps in facts.transitions.values() if steps[0].old == GONE]
    counts = Counter(row.key for row in first if row.key and not row.replayed_from)
    return [f"stored {count} times: {key}" for key, count in counts.items() if count > 1]


def _unique(facts: Facts) -> list[str]:
    """No job is inserted while another job with its unique key is unfinished.

    Replayed jobs do not count: by then another job may have their key."""
    changes = [
        (step.before or step.row, change)
        for steps in facts.transitions.values()
        for step in steps
        if (change := _live_change(step))
    ]
    live_jobs: dict[tuple[int, str], set[str]] = defaultdict(set)
    found = []
    for row, change in sorted((pair for pair in changes if pair[0].unique_key), key=lambda pair: pair[0].n):
        holders = live_jobs[row.queue, row.unique_key]
        if change > 0 and holders:
            found.append(f"unique key {row.unique_key} twice: {min(holders)} and {row.id}, change {row.n}")
        (holders.add if change > 0 else holders.discard)(row.id)
    return found


def _live_change(step: Transition) -> int:
    """Returns 1 if a job is inserted, -1 if an unfinished job ends."""
    if step.old == GONE:
        return 1
    return -1 if step.new not in LIVE and step.old in LIVE else 0


def _running(facts: Facts) -> list[str]:
    found = []
    running: Counter[tuple[int, str]] = Counter()
    for row, change in sorted(_changes(facts), key=lambda pair: pair[0].n):
        for scope, limit in _limits(facts.final_state.queues[row.queue], row):
            running[scope] += change
            if change > 0 and running[scope] > limit:
                name = facts.final_state.queues[row.queue].name
                found.append(
                    f"{running[scope]} run at once in {name} {scope[1]}, limit {limit}: {row.id}, change {row.n}"
                )
    return found


def _changes(facts: Facts) -> Iterator[tuple[AuditRow, int]]:
    """Yields the start and the end of every lease in queues with a limit."""
    limited = {id for id, rules in facts.final_state.queues.items() if rules.max_running or rules.max_running_per_group}
    for steps in facts.transitions.values():
        if steps[0].row.queue in limited:
            yield from ((step.row, change) for step in steps if (change := _change(step)))


def _change(step: Transition) -> int:
    return (step.new == "running") - (step.old == "running")


def _limits(rules: QueueLimits, row: AuditRow) -> Iterator[tuple[tuple[int, str], int]]:
    if rules.max_running:
        yield (row.queue, ""), rules.max_running
    if rules.max_running_per_group and row.group_key:
        yield (row.queue, row.group_key), rules.max_running_per_group
