"""Whole graphs: every job runs once, and after all that it waits for."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api import Api, Json
from tests.conftest import wait_until
from tests.dependencies.family import Family, born

# The broker lives in this process and rolls dice too: hypothesis takes that for ours.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)

Parents = dict[str, list[str]]


def outcome(job: Json, bad: frozenset[str]) -> Json:
    """As a settlement: those that are bad die."""
    lease = {"job_id": job["id"], "lease_token": job["lease_token"]}
    if job["job_type"] in bad:
        return {**lease, "outcome": "fail", "retryable": False, "error": {"message": "it broke"}}
    return {**lease, "outcome": "complete"}


def rounds(api: Api, bad: frozenset[str] = frozenset()) -> Iterator[list[str]]:
    """Works until nothing waits any more, and tells who ran in which hand-out."""
    while wait_until(lambda: not api.counts().keys() & {"blocked"} or api.counts().get("ready")) and api.counts().get(
        "ready"
    ):
        jobs = api.claim(max_jobs=1000)["jobs"]
        yield [job["job_type"] for job in jobs]
        api.settle(*[outcome(job, bad) for job in jobs])


def worked(api: Api, bad: frozenset[str] = frozenset()) -> list[str]:
    return [name for names in rounds(api, bad) for name in names]


def expected(parents: Parents, bad: frozenset[str]) -> dict[str, str]:
    """Parents come before their children here."""
    states: dict[str, str] = {}
    for name, awaited in parents.items():
        cancelled = any(states[parent] != "completed" for parent in awaited)
        states[name] = "cancelled" if cancelled else "dead" if name in bad else "completed"
    return states


def check(api: Api, family: Family, parents: Parents, order: list[str], bad: frozenset[str] = frozenset()) -> None:
    states = expected(parents, bad)
    assert family.states() == states
    assert sorted(order) == sorted(name for name in parents if states[name] != "cancelled")
    assert all(order.index(parent) < order.index(name) for name in order for parent in parents[name])


def test_a_diamond(api: Api) -> None:
    parents: Parents = {"top": [], "left": ["top"], "right": ["top"], "bottom": ["left", "right"]}
    family = born(api, parents)
    check(api, family, parents, worked(api))


def test_a_diamond_with_a_bad_side(api: Api) -> None:
    parents: Parents = {"top": [], "left": ["top"], "right": ["top"], "bottom": ["left", "right"], "end": ["bottom"]}
    family = born(api, parents)
    bad = frozenset({"left"})
    check(api, family, parents, worked(api, bad), bad)


def test_a_lattice(api: Api) -> None:
    parents: Parents = {
        f"j{row}{n}": [f"j{row - 1}{m}" for m in range(5)] if row else [] for row in range(6) for n in range(5)
    }
    family = born(api, parents)
    check(api, family, parents, worked(api))


def test_a_thousand_children_of_one_parent(api: Api) -> None:
    parent = api.enqueue(job_type="parent")
    api.batch(*[{"depends_on": [parent["id"]]}] * 1000)
    api.batch(*[{"depends_on": [parent["id"]]}] * 500)
    assert api.counts() == {"ready": 1, "blocked": 1500}
    api.complete(api.claim_one())
    wait_until(lambda: api.counts() == {"completed": 1, "ready": 1500})


def test_a_thousand_children_are_cancelled_with_one_parent(api: Api) -> None:
    api.batch({"ref": "parent"}, *[{"depends_on": ["parent"], "queue": f"{api.queue}-{n % 2}"} for n in range(999)])
    api.fail(api.claim_one(), retryable=False)
    wait_until(lambda: api.get("/stats")["counts"]["cancelled"] == 999)
    assert api.get("/stats")["counts"]["blocked"] == 0


def test_a_thousand_parents_of_one_child(api: Api) -> None:
    *parents, child = [
        result["job_id"]
        for result in api.batch(*[{"ref": f"p{n}"} for n in range(999)], {"depends_on": [f"p{n}" for n in range(999)]})[
            "results"
        ]
    ]
    assert api.job(child)["depends_on"] == parents
    api.settle(*[outcome(job, frozenset()) for job in api.claim(max_jobs=1000)["jobs"]])
    wait_until(lambda: api.counts() == {"completed": 999, "ready": 1})


def test_a_chain_of_a_thousand_may_stand_in_any_order(api: Api) -> None:
    jobs = [{"ref": f"r{n}", "depends_on": [f"r{n - 1}"] if n else []} for n in range(1000)]
    assert api.batch(*jobs[::-1])["created"] == 1000
    assert api.counts() == {"ready": 1, "blocked": 999}
    api.cancel({"id": api.claim_one()["id"]}, status=202)


def test_a_chain_is_cancelled_link_by_link(api: Api) -> None:
    parents: Parents = {f"r{n}": [f"r{n - 1}"] if n else [] for n in range(60)}
    family = born(api, parents)
    family.cancel("r0")
    wait_until(lambda: api.counts() == {"cancelled": 60})


def test_half_a_million_edges_are_checked_in_no_time_worth_speaking_of(api: Api) -> None:
    """All jobs wait for all before them; the last one for itself. Nothing is stored, but the way round is found."""
    jobs = [{"ref": f"{n}", "depends_on": [f"{m}" for m in range(n)]} for n in range(999)]
    problem = api.batch(*jobs, {"ref": "last", "depends_on": ["last"]}, status=422)
    assert problem["errors"][0]["detail"] == "last -> last"


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Parents, frozenset[str]]:
    """Any graph without circles: each job waits for some of those before it."""
    names = [f"j{n}" for n in range(draw(st.integers(1, 12)))]
    parents = {
        name: sorted(draw(st.sets(st.sampled_from(names[:n]), max_size=4))) if n else [] for n, name in enumerate(names)
    }
    return parents, frozenset(draw(st.sets(st.sampled_from(names), max_size=2)))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graphs(), st.randoms(use_true_random=False))
def test_any_graph_runs_in_order_and_once(api: Api, drawn: tuple[Parents, frozenset[str]], random: object) -> None:
    parents, bad = drawn
    shuffled = sorted(parents, key=lambda name: random.random())  # type: ignore[attr-defined]
    family = born(api, {name: parents[name] for name in shuffled})
    check(api, family, parents, worked(api, bad), bad)
    api.post(f"/queues/{api.queue}/purge", {"dry_run": False})
