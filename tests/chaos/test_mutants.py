"""The harness can fail: it finds a few deliberate bugs, and no violation of the unmodified broker.

`make mutants` runs all mutants."""

import os
import subprocess
import sys

import pytest

from tests.chaos.mutants import MUTANTS
from tests.chaos.mutation import SITUATIONS, UNMODIFIED, mutant_runs, run_mutant

MUTANTS_OF_THIS_TEST = ("complete_no_fence", "gives_up_at_once", "no_dedupe")


@pytest.mark.parametrize("name", MUTANTS_OF_THIS_TEST)
def test_deliberate_bug_is_found(name: str) -> None:
    outcome = run_mutant(name, MUTANTS[name].situation, seed=1)
    assert outcome.is_as_expected, outcome


def test_unmodified_broker_has_no_violation_in_the_same_situation() -> None:
    outcome = run_mutant(UNMODIFIED, MUTANTS[MUTANTS_OF_THIS_TEST[0]].situation, seed=1)
    assert outcome.is_as_expected, outcome


APPLY_EACH = """
import os
from tests.chaos.mutants import MUTANTS, apply, changed_claim

for name, mutant in MUTANTS.items():
    child = os.fork()
    if child == 0:
        apply(name)
        assert mutant.bugs or changed_claim(name)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, name
"""


def test_every_bug_can_be_applied() -> None:
    """Applies each bug in a process of its own: two may rewrite one line. A bug whose statement has
    changed would have no effect."""
    environment = os.environ | {"CHAOS_BUGGIFY": "0:1/1"}
    subprocess.run([sys.executable, "-c", APPLY_EACH], env=environment, check=True, timeout=120)


def test_there_are_at_least_sixteen_mutants_each_with_an_unmodified_control_run() -> None:
    assert len(MUTANTS) >= 16
    assert {situation for name, situation in mutant_runs([]) if name == UNMODIFIED} == {
        mutant.situation for mutant in MUTANTS.values()
    }
    assert {mutant.situation for mutant in MUTANTS.values()} == SITUATIONS.keys()
