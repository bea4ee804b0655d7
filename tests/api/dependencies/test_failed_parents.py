"""Parents that fail: their children are cancelled, or run with on_parent_failure `run`."""

from collections.abc import Callable

import pytest

from tests.api.dependencies.job_graph import JobGraph, enqueue_graph, enqueue_pair
from tests.api_client import Api
from tests.database import TestDatabase

End = Callable[[JobGraph, TestDatabase], object]


def expire(graph: JobGraph, db: TestDatabase) -> None:
    db.execute("UPDATE jobs SET expires_at = now() - interval '1 second' WHERE id = $1", graph.ids["parent"])


def crash(graph: JobGraph, db: TestDatabase) -> None:
    for _ in range(3):
        graph.claim("parent")
        db.age(graph.ids["parent"], 61)


def stop(graph: JobGraph, _: TestDatabase) -> None:
    claimed = graph.claim("parent")
    graph.cancel("parent", status=202)
    graph.api.release(claimed)


def purge(graph: JobGraph, _: TestDatabase) -> None:
    graph.api.post(f"/queues/{graph.api.queue}/purge", {"states": ["ready"], "dry_run": False})


ENDS: dict[str, End] = {
    "dies": lambda graph, _: graph.fail_permanently("parent"),
    "is cancelled": lambda graph, _: graph.cancel("parent"),
    "is stopped": stop,
    "expires": expire,
    "is poison": crash,
    "is purged": purge,
}


@pytest.mark.parametrize("end", ENDS)
def test_failed_parent_cancels_all_descendants(api: Api, db: TestDatabase, end: str) -> None:
    graph = enqueue_graph(api, {"parent": [], "child": ["parent"], "grandchild": ["child"], "last": ["grandchild"]})
    ENDS[end](graph, db)
    graph.wait_for_states(child="cancelled", grandchild="cancelled", last="cancelled")
    for name in ("child", "grandchild", "last"):
        job = graph.job(name)
        assert (job["state_reason"], "finished_at" in job, "cancel_requested_at" in job) == (
            "dependency_failed",
            True,
            False,
        )
    assert api.counts().get("blocked") is None
    assert api.counts()["cancelled"] == 3 + (parent_state(api, graph) == "cancelled")


def parent_state(api: Api, graph: JobGraph) -> str:
    """The state of the parent, or `gone` if it was purged."""
    response = api.http.get(f"/jobs/{graph.ids['parent']}")
    return str(response.json()["state"]) if response.status_code == 200 else "gone"


@pytest.mark.parametrize("end", ENDS)
def test_child_with_policy_run_runs_after_a_failed_parent(api: Api, db: TestDatabase, end: str) -> None:
    graph = enqueue_pair(api, on_parent_failure="run")
    ENDS[end](graph, db)
    graph.complete("child")


@pytest.mark.parametrize("end", ["fail_permanently", "cancel"])
@pytest.mark.parametrize(("policy", "state"), [("cancel", "cancelled"), ("run", "ready")])
def test_parent_that_failed_before_the_enqueue_applies_the_policy(api: Api, end: str, policy: str, state: str) -> None:
    graph = enqueue_graph(api, {"parent": []})
    getattr(graph, end)("parent")
    child = api.enqueue(depends_on=[graph.ids["parent"]], on_parent_failure=policy)
    assert child["state"] == state
    assert child.get("state_reason") == (None if policy == "run" else "dependency_failed")
    assert api.job(child["id"]) == child
    assert api.counts()[state] == 1 + (state == "cancelled" and end == "cancel")


def test_child_of_a_completed_parent_is_ready(api: Api) -> None:
    graph = enqueue_graph(api, {"parent": []})
    graph.complete("parent")
    child = api.enqueue(depends_on=[graph.ids["parent"]])
    assert (child["state"], "state_reason" in child, child["depends_on"]) == ("ready", False, [graph.ids["parent"]])
    assert api.job(child["id"]) == child
    assert api.claim_one()["id"] == child["id"]


def test_child_of_a_completed_and_a_live_parent_waits_for_the_live_one(api: Api) -> None:
    done = enqueue_graph(api, {"done": []})
    done.complete("done")
    graph = enqueue_graph(api, {"live": [], "child": ["live", done.ids["done"]]})
    assert graph.state("child") == "blocked"
    assert len(graph.job("child")["depends_on"]) == 2
    graph.complete("live", "child")


def test_child_of_a_dead_and_a_live_parent_is_cancelled_with_its_children(api: Api) -> None:
    dead = enqueue_graph(api, {"dead": []})
    dead.fail_permanently("dead")
    graph = enqueue_graph(api, {"live": [], "child": ["live", dead.ids["dead"]], "grandchild": ["child"]})
    assert graph.state("child") == "cancelled"
    graph.wait_for_states(grandchild="cancelled")
    assert graph.state("live") == "ready"
    graph.complete("live")
    assert graph.state("child") == "cancelled"


def test_child_with_policy_run_waits_for_its_other_parents(api: Api) -> None:
    graph = enqueue_graph(api, {"a": [], "b": [], "child": ["a", "b"]}, child={"on_parent_failure": "run"})
    graph.fail_permanently("a")
    graph.cancel("b")
    graph.complete("child")
    graph = enqueue_graph(api, {"a": [], "b": [], "child": ["a", "b"]}, child={"on_parent_failure": "run"})
    graph.fail_permanently("a")
    graph.wait_for_states(child="blocked")
    graph.complete("b", "child")


def test_dead_parent_cancels_the_child_but_not_the_other_parents(api: Api) -> None:
    graph = enqueue_graph(api, {"a": [], "b": [], "c": [], "child": ["a", "b", "c"]})
    graph.complete("a")
    graph.fail_permanently("b")
    graph.wait_for_states(child="cancelled")
    graph.complete("c")
    assert graph.states() == {"a": "completed", "b": "dead", "c": "completed", "child": "cancelled"}
    assert api.counts() == {"completed": 2, "dead": 1, "cancelled": 1}


def test_each_child_has_its_own_policy(api: Api) -> None:
    policies = {"b": {"on_parent_failure": "run"}, "c": {"on_parent_failure": "cancel"}}
    graph = enqueue_graph(
        api, {"parent": [], "a": ["parent"], "b": ["parent"], "c": ["parent"], "d": ["b"]}, **policies
    )
    graph.fail_permanently("parent")
    graph.wait_for_states(a="cancelled", c="cancelled", b="ready")
    assert graph.state("d") == "blocked"
    graph.complete("b", "d")


def test_grandchild_with_policy_run_runs_after_a_cancelled_child(api: Api) -> None:
    graph = enqueue_graph(
        api, {"parent": [], "child": ["parent"], "cleanup": ["child"]}, cleanup={"on_parent_failure": "run"}
    )
    graph.fail_permanently("parent")
    graph.complete("cleanup")
    assert graph.state("child") == "cancelled"


def test_waiting_for_a_result_ends_when_the_child_is_cancelled(api: Api) -> None:
    graph = enqueue_pair(api)
    graph.fail_permanently("parent")
    assert api.job(graph.ids["child"], wait_seconds=20)["state"] == "cancelled"


def test_replayed_parent_leaves_old_children_cancelled_and_blocks_new_ones(api: Api) -> None:
    graph = enqueue_pair(api)
    graph.fail_permanently("parent")
    graph.wait_for_states(child="cancelled")
    api.post(f"/dead-letters/{graph.ids['parent']}/replay")
    child = JobGraph(api, {"new": api.enqueue(job_type="new", depends_on=[graph.ids["parent"]])["id"]})
    assert child.state("new") == "blocked"
    graph.complete("parent")
    child.complete("new")
    assert graph.state("child") == "cancelled"


def test_parent_that_dies_again_after_a_replay_cancels_its_new_children(api: Api) -> None:
    graph = enqueue_pair(api)
    graph.fail_permanently("parent")
    graph.wait_for_states(child="cancelled")
    api.post(f"/dead-letters/{graph.ids['parent']}/replay")
    child = JobGraph(api, {"new": api.enqueue(job_type="new", depends_on=[graph.ids["parent"]])["id"]})
    graph.fail_permanently("parent")
    child.wait_for_states(new="cancelled")


def test_dead_child_can_be_replayed(api: Api) -> None:
    graph = enqueue_pair(api)
    graph.complete("parent")
    graph.fail_permanently("child")
    replayed = api.post(f"/dead-letters/{graph.ids['child']}/replay")
    assert (replayed["state"], replayed["depends_on"]) == ("ready", [graph.ids["parent"]])
    graph.complete("child")
