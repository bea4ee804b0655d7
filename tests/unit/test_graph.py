"""Names to ids, and circles."""

from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dependencies.graph import check_no_cycle, resolve
from app.errors import ValidationFailed

A, B = UUID("6f1c2a54-0234-4c5e-a310-f1a80f6ef701"), UUID("6f1c2a54-0234-4c5e-a310-f1a80f6ef702")

# The broker of other tests lives in this process and rolls dice too: hypothesis takes that for ours.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)


def way_round(parents: dict[str, list[str]]) -> list[str]:
    """The circle that is told, or nothing."""
    try:
        check_no_cycle(parents, {ref: f"/jobs/{ref}" for ref in parents})
    except ValidationFailed as problem:
        (fault,) = problem.faults
        way = fault.detail.split(" -> ")
        assert (fault.pointer, fault.code) == (f"/jobs/{way[0]}/depends_on", "cycle")
        return way
    return []


def test_refs_come_before_ids_and_each_parent_once() -> None:
    assert resolve(["a", str(B), "a", str(A).upper()], {"a": A}, "") == [A, B]
    assert resolve([str(B)], {str(B): A}, "") == [A]
    assert resolve([], {}, "") == []


@pytest.mark.parametrize("name", ["b", "0", str(A)[:-1], "01890000-0000-7000-8000-00000000000g"])
def test_what_is_neither_is_pointed_at(name: str) -> None:
    with pytest.raises(ValidationFailed) as raised:
        resolve(["a", name], {"a": A}, "/jobs/3")
    assert [(fault.pointer, fault.code) for fault in raised.value.faults] == [("/jobs/3/depends_on/1", "unknown_ref")]


@pytest.mark.parametrize(
    ("parents", "way"),
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
def test_the_way_round_is_told(parents: dict[str, list[str]], way: list[str]) -> None:
    assert way_round(parents) == way


def test_a_chain_is_deeper_than_pythons_stack() -> None:
    chain = {f"{n}": [f"{n + 1}"] for n in range(20_000)}
    assert way_round({**chain, "20000": []}) == []
    assert way_round({**chain, "20000": ["0"]})[-3:] == ["17", "... (20001 jobs)", "0"]


@given(st.dictionaries(st.sampled_from("abcdef"), st.lists(st.sampled_from("abcdef"), max_size=4)))
def test_a_way_is_told_if_and_only_if_there_is_one(drawn: dict[str, list[str]]) -> None:
    parents = {ref: [parent for parent in awaited if parent in drawn] for ref, awaited in drawn.items()}
    way = way_round(parents)
    assert bool(way) == _has_circle(parents)
    assert all(parent in parents[ref] for ref, parent in pairwise(way))
    assert not way or (way[0] == way[-1] and len(set(way)) == len(way) - 1)


def _has_circle(parents: dict[str, list[str]]) -> bool:
    """By taking away, again and again, whoever waits for nobody."""
    left = dict(parents)
    while free := [ref for ref, awaited in left.items() if not set(awaited) & left.keys()]:
        for ref in free:
            del left[ref]
    return bool(left)


def test_ids_are_ids() -> None:
    assert all(isinstance(parent, UUID) for parent in resolve([str(A)], {}, ""))
