"""Dependency graph: resolving refs to ids, and detection of cycles."""

from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dependencies.graph import cycle_problem, find_cycles, resolve
from app.errors import ValidationFailed
from tests.table import table

A, B = UUID("6f1c2a54-0234-4c5e-a310-f1a80f6ef701"), UUID("6f1c2a54-0234-4c5e-a310-f1a80f6ef702")

# A broker of other tests runs in this process and uses `random` too; hypothesis would blame these
# tests.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)


def find_cycle(parents: dict[str, list[str]]) -> list[str]:
    """Returns the cycle of the error, or an empty list."""
    for path in filter(None, find_cycles(parents)):
        (fault,) = cycle_problem(path, f"/jobs/{path[0]}").faults
        cycle = fault.detail.split(" -> ")
        assert (fault.pointer, fault.code) == (f"/jobs/{cycle[0]}/depends_on", "cycle")
        return cycle
    return []


def test_refs_have_precedence_over_ids_and_parents_are_unique() -> None:
    assert resolve(["a", str(B), "a", str(A).upper()], {"a": A}, "") == [A, B]
    assert resolve([str(B)], {str(B): A}, "") == [A]
    assert resolve([], {}, "") == []


@table("name", ["b", "0", str(A)[:-1], "01890000-0000-7000-8000-00000000000g"])
def test_unknown_name_is_an_error_with_its_pointer(name: str) -> None:
    with pytest.raises(ValidationFailed) as raised:
        resolve(["a", name], {"a": A}, "/jobs/3")
    assert [(fault.pointer, fault.code) for fault in raised.value.faults] == [("/jobs/3/depends_on/1", "unknown_ref")]


@table(
    ("parents", "cycle"),
    [
        ({}, []),
        ({"a": []}, []),
        ({"a": ["a"]}, ["a", "a"]),
        ({"a": ["b"], "b": []}, []),
        ({"a": ["b"], "b": ["a"]}, ["a", "b", "a"]),
        ({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}, []),
        ({"a": ["b"], "b": ["c"], "c": ["b"]}, ["b", "c", "b"]),
        ({"a": ["b", "c"], "b": [], "c": ["d"], "d": ["a"]}, ["a", "c", "d", "a"]),
        ({"a": ["b", "b"], "b": []}, []),
    ],
)
def test_error_lists_the_jobs_of_the_cycle(parents: dict[str, list[str]], cycle: list[str]) -> None:
    assert find_cycle(parents) == cycle


def test_chain_may_be_longer_than_the_python_stack() -> None:
    chain = {f"{n}": [f"{n + 1}"] for n in range(20_000)}
    assert find_cycle({**chain, "20000": []}) == []
    assert find_cycle({**chain, "20000": ["0"]})[-3:] == ["17", "... (20001 jobs)", "0"]


@given(st.dictionaries(st.sampled_from("abcdef"), st.lists(st.sampled_from("abcdef"), max_size=4)))
def test_cycle_is_reported_if_and_only_if_one_exists(names: dict[str, list[str]]) -> None:
    parents = {ref: [parent for parent in depends_on if parent in names] for ref, depends_on in names.items()}
    cycle = find_cycle(parents)
    assert bool(cycle) == _has_cycle(parents)
    assert all(parent in parents[ref] for ref, parent in pairwise(cycle))
    assert not cycle or (cycle[0] == cycle[-1] and len(set(cycle)) == len(cycle) - 1)


def _has_cycle(parents: dict[str, list[str]]) -> bool:
    """Decides it by repeatedly removing the jobs without parents."""
    remaining = dict(parents)
    while free := [ref for ref, depends_on in remaining.items() if not set(depends_on) & remaining.keys()]:
        for ref in free:
            del remaining[ref]
    return bool(remaining)


def test_parents_given_by_id_are_uuids() -> None:
    assert all(isinstance(parent, UUID) for parent in resolve([str(A)], {}, ""))
