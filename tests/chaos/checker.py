"""The verdict: every invariant of FAULTS.md asked of one history and its last look. Pure: the same files give the same verdict."""

from collections.abc import Callable

from tests.chaos import (
    endings,
    liveness,
    queue_rules,
    safety,
    transition_rules,
    witness_answers,
    witness_calls,
    witness_limits,
)
from tests.chaos.facts import Facts

Found = dict[str, list[str]]

INVARIANTS: dict[str, Callable[[Facts], list[str]]] = {
    "I1": safety.i1_nothing_acknowledged_is_lost,
    "I2": safety.i2_nothing_comes_from_nowhere,
    "I3": safety.i3_one_job_per_key,
    "I4": safety.i4_one_completion,
    "I5": safety.i5_one_holder,
    "I5 limits": safety.i5_limits_hold,
    "I6": safety.i6_the_fence_holds,
    "I7": safety.i7_attempts_are_counted,
    "I8": liveness.i8_order_is_kept,
    "I9": liveness.i9_all_comes_to_an_end,
    "I10": liveness.i10_unknown_outcomes_resolve,
    "I11": liveness.i11_nothing_runs_early,
    "I12": liveness.i12_counts_agree,
    "I13": endings.i13_every_end_has_a_cause,
    "I14": queue_rules.i14_changes_are_in_effect,
    "W1": transition_rules.w1_transitions_are_legal,
    "W2": transition_rules.w2_attempts_are_counted,
    "W3": transition_rules.w3_leases_end_for_a_reason,
    "W4": transition_rules.w4_deaths_have_a_cause,
    "W5": transition_rules.w5_nothing_runs_early,
    "W6": witness_limits.w6_limits_hold,
    "W7": witness_answers.w7_answers_are_true,
    "W8": witness_calls.w8_calls_are_whole,
}


def check(facts: Facts) -> Found:
    """What was found, by invariant; those that hold are not named."""
    return {name: breaches for name, invariant in INVARIANTS.items() if (breaches := invariant(facts))}
