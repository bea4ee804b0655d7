"""Whole graphs: every job runs once, after all its parents."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api.dependencies.job_graph import JobGraph, enqueue_graph
from tests.api_client import Api, Json
from tests.conftest import wait_until

# The broker in this process uses `random` too, and hypothesis warns about it.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)

Parents = dict[str, list[str]]


def outcome(job: Json, failing: frozenset[str]) -> Json:
    """The settlement of a job: a failing job dies, others complete."""
    lease = {"job_id": job["id"], "lease_token": job["lease_token"]}
    if job["job_type"] in failing:
        return {**lease, "outcome": "fail", "retryable": False, "error": {"message": "it broke"}}
    return {**lease, "outcome": "complete"}


def claim_rounds(api: Api, failing: frozenset[str] = frozenset()) -> Iterator[list[str]]:
    """Runs all jobs. Yields the job types of each claim."""
    while wait_until(lambda: not api.counts().keys() & {"blocked"} or api.counts().get("ready")) and api.counts().get(
        "ready"
    ):
        jobs = api.claim(max_jobs=1000)["jobs"]
        yield [job["job_type"] for job in jobs]
        api.settle(*[outcome(job, failing) for job in jobs])


def run_all(api: Api, failing: frozenset[str] = frozenset()) -> list[str]:
    return [name for names in claim_rounds(api, failing) for name in names]


def expected(parents: Parents, failing: frozenset[str]) -> dict[str, str]:
    """The final states. `parents` lists parents before their children."""
    states: dict[str, str] = {}
    for name, parents_of_job in parents.items():
        cancelled = any(states[parent] != "completed" for parent in parents_of_job)
        states[name] = "cancelled" if cancelled else "dead" if name in failing else "completed"
    return states


def check(api: Api, graph: JobGraph, parents: Parents, order: list[str], failing: frozenset[str] = frozenset()) -> None:
    states = expected(parents, failing)
    assert graph.states() == states
    assert sorted(order) == sorted(name for name in parents if states[name] != "cancelled")
    assert all(order.index(parent) < order.index(name) for name in order for parent in parents[name])


def test_diamond_graph_runs_in_order(api: Api) -> None:
    parents: Parents = {"top": [], "left": ["top"], "right": ["top"], "bottom": ["left", "right"]}
    graph = enqueue_graph(api, parents)
    check(api, graph, parents, run_all(api))


def test_diamond_graph_with_a_failing_side_cancels_its_bottom(api: Api) -> None:
    parents: Parents = {"top": [], "left": ["top"], "right": ["top"], "bottom": ["left", "right"], "end": ["bottom"]}
    graph = enqueue_graph(api, parents)
    failing = frozenset({"left"})
    check(api, graph, parents, run_all(api, failing), failing)


def test_lattice_graph_runs_in_order(api: Api) -> None:
    parents: Parents = {
        f"j{row}{n}": [f"j{row - 1}{m}" for m in range(5)] if row else [] for row in range(6) for n in range(5)
    }
    graph = enqueue_graph(api, parents)
    check(api, graph, parents, run_all(api))


def test_parent_unblocks_a_thousand_children(api: Api) -> None:
    parent = api.enqueue(job_type="parent")
    api.batch(*[{"depends_on": [parent["id"]]}] * 1000)
    api.batch(*[{"depends_on": [parent["id"]]}] * 500)
    assert api.counts() == {"ready": 1, "blocked": 1500}
    api.complete(api.claim_one())
    wait_until(lambda: api.counts() == {"completed": 1, "ready": 1500})


def test_failed_parent_cancels_a_thousand_children(api: Api) -> None:
    api.batch({"ref": "parent"}, *[{"depends_on": ["parent"], "queue": f"{api.queue}-{n % 2}"} for n in range(999)])
    api.fail(api.claim_one(), retryable=False)
    wait_until(lambda: api.get("/stats")["counts"]["cancelled"] == 999)
    assert api.get("/stats")["counts"]["blocked"] == 0


def test_child_may_have_a_thousand_parents(api: Api) -> None:
    *parents, child = [
        result["job_id"]
        for result in api.batch(*[{"ref": f"p{n}"} for n in range(999)], {"depends_on": [f"p{n}" for n in range(999)]})[
            "results"
        ]
    ]
    assert api.job(child)["depends_on"] == parents
    api.settle(*[outcome(job, frozenset()) for job in api.claim(max_jobs=1000)["jobs"]])
    wait_until(lambda: api.counts() == {"completed": 999, "ready": 1})


def test_chain_of_a_thousand_jobs_may_be_in_any_order_in_the_batch(api: Api) -> None:
    jobs = [{"ref": f"r{n}", "depends_on": [f"r{n - 1}"] if n else []} for n in range(1000)]
    assert api.batch(*jobs[::-1])["created"] == 1000
    assert api.counts() == {"ready": 1, "blocked": 999}
    api.cancel({"id": api.claim_one()["id"]}, status=202)


def test_cancelled_job_cancels_the_chain_behind_it(api: Api) -> None:
    parents: Parents = {f"r{n}": [f"r{n - 1}"] if n else [] for n in range(60)}
    graph = enqueue_graph(api, parents)
    graph.cancel("r0")
    wait_until(lambda: api.counts() == {"cancelled": 60})


@pytest.mark.slow
def test_cycle_is_found_among_half_a_million_edges(api: Api) -> None:
    """Every job depends on all jobs before it, and the last one on itself. Nothing is stored."""
    jobs = [{"ref": f"{n}", "depends_on": [f"{m}" for m in range(n)]} for n in range(999)]
    problem = api.batch(*jobs, {"ref": "last", "depends_on": ["last"]}, status=422)
    assert problem["errors"][0]["detail"] == "last -> last"


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Parents, frozenset[str]]:
    """Acyclic graphs: each job depends on some of the jobs before it."""
    names = [f"j{n}" for n in range(draw(st.integers(1, 12)))]
    parents = {
        name: sorted(draw(st.sets(st.sampled_from(names[:n]), max_size=4))) if n else [] for n, name in enumerate(names)
    }
    return parents, frozenset(draw(st.sets(st.sampled_from(names), max_size=2)))


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graphs(), st.randoms(use_true_random=False))
def test_any_acyclic_graph_runs_in_order_and_once(
    api: Api, drawn: tuple[Parents, frozenset[str]], random: object
) -> None:
    parents, failing = drawn
    shuffled = sorted(parents, key=lambda name: random.random())  # type: ignore[attr-defined]
    graph = enqueue_graph(api, {name: parents[name] for name in shuffled})
    check(api, graph, parents, run_all(api, failing), failing)
    api.post(f"/queues/{api.queue}/purge", {"dry_run": False})
