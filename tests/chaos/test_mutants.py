"""The harness can fail: a few brokers with a deliberate bug are caught, and the sound one is not. `make mutants` tries them all."""

import os
import subprocess
import sys

import pytest

from tests.chaos.mutants import MUTANTS
from tests.chaos.mutation import SITUATIONS, UNMODIFIED, mutant_runs, run_mutant

CAUGHT_HERE = ("complete_no_fence", "gives_up_at_once", "no_dedupe")


@pytest.mark.parametrize("name", CAUGHT_HERE)
def test_a_deliberate_bug_is_caught(name: str) -> None:
    outcome = run_mutant(name, MUTANTS[name].situation, seed=1)
    assert outcome.is_as_expected, outcome


def test_the_sound_broker_is_clean_where_they_are_caught() -> None:
    outcome = run_mutant(UNMODIFIED, MUTANTS[CAUGHT_HERE[0]].situation, seed=1)
    assert outcome.is_as_expected, outcome


def test_every_bug_has_somewhere_to_go() -> None:
    """All of them, in a process of their own: a statement that says something else by now makes its mutant a sound broker."""
    script = "from tests.chaos.mutants import MUTANTS, apply\nfor name in MUTANTS: apply(name)"
    subprocess.run([sys.executable, "-c", script], env=os.environ | {"CHAOS_BUGGIFY": "0:1/1"}, check=True, timeout=120)


def test_there_are_at_least_sixteen_and_each_has_a_sound_twin() -> None:
    assert len(MUTANTS) >= 16
    assert {situation for name, situation in mutant_runs([]) if name == UNMODIFIED} == {
        mutant.situation for mutant in MUTANTS.values()
    }
    assert {mutant.situation for mutant in MUTANTS.values()} == SITUATIONS.keys()
