"""Checks all invariants of docs/reliability/chaos.md on one history and its final state. Pure."""

from collections.abc import Callable

from tests.chaos import (
    audit_atomicity,
    audit_limits,
    audit_operations,
    audit_order,
    audit_responses,
    end_causes,
    liveness,
    queue_rules,
    safety,
    transition_rules,
)
from tests.chaos.facts import Facts

Violations = dict[str, list[str]]

INVARIANTS: dict[str, Callable[[Facts], list[str]]] = {
    "I1": safety.i1_nothing_acknowledged_is_lost,
    "I2": safety.i2_every_job_was_enqueued,
    "I3": safety.i3_one_job_per_key,
    "I4": safety.i4_one_completion,
    "I5": safety.i5_one_holder,
    "I5 limits": safety.i5_limits_are_kept,
    "I6": safety.i6_stale_tokens_are_rejected,
    "I7": safety.i7_attempts_are_counted,
    "I8": liveness.i8_order_is_kept,
    "I9": liveness.i9_all_jobs_finish,
    "I10": liveness.i10_unknown_outcomes_resolve,
    "I11": liveness.i11_nothing_runs_early,
    "I12": liveness.i12_counts_agree,
    "I13": end_causes.i13_every_end_has_a_cause,
    "I14": queue_rules.i14_changes_are_in_effect,
    "W1": transition_rules.w1_transitions_are_legal,
    "W2": transition_rules.w2_attempts_are_counted,
    "W3": transition_rules.w3_leases_end_for_a_reason,
    "W4": transition_rules.w4_dead_letters_have_a_cause,
    "W5": transition_rules.w5_jobs_run_in_their_time,
    "W6": audit_limits.w6_limits_are_kept,
    "W7": audit_responses.w7_responses_match_the_audit_log,
    "W8": audit_atomicity.w8_calls_are_atomic,
    "W9": audit_order.w9_order_is_kept,
    "W10": audit_operations.w10_operations_take_effect,
}


def check(facts: Facts) -> Violations:
    """Returns the violations by invariant; invariants without violations are omitted."""
    return {name: violations for name, invariant in INVARIANTS.items() if (violations := invariant(facts))}
