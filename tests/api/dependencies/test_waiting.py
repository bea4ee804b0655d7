"""Children wait for their parents, and become ready when these have completed."""

import pytest

from tests.api.dependencies.job_graph import JobGraph, enqueue_graph, enqueue_pair
from tests.api_client import Api, Json, parse_time
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.polls import Background


def test_job_depends_on_another_by_its_id(api: Api) -> None:
    parent = api.enqueue(job_type="parent")
    child = api.enqueue(job_type="child", depends_on=[parent["id"]])
    assert (child["state"], child["state_reason"], child["depends_on"]) == (
        "blocked",
        "waiting_for_jobs",
        [parent["id"]],
    )
    assert api.job(child["id"]) == child
    assert api.counts() == {"ready": 1, "blocked": 1}
    assert "depends_on" not in parent


def test_child_is_claimed_after_its_parent_has_completed(api: Api) -> None:
    graph = enqueue_pair(api)
    assert [job["id"] for job in api.claim(max_jobs=5)["jobs"]] == [graph.ids["parent"]]
    graph = enqueue_pair(api)
    graph.complete("parent")
    graph.complete("child")
    assert graph.states() == {"parent": "completed", "child": "completed"}


def test_unblocked_child_has_no_state_reason_and_keeps_depends_on(api: Api) -> None:
    graph = enqueue_pair(api)
    graph.complete("parent")
    graph.wait_for_states(child="ready")
    job = graph.job("child")
    assert ("state_reason" in job, job["depends_on"]) == (False, [graph.ids["parent"]])
    graph.complete("child")
    assert graph.job("child")["depends_on"] == [graph.ids["parent"]]


def test_unblocked_child_wakes_a_poller(api: Api, background: Background) -> None:
    graph = enqueue_pair(api)
    poller = background.claim(api, job_types=["child"])
    graph.complete("parent")
    assert [job["id"] for job in poller.result(20)["jobs"]] == [graph.ids["child"]]


def test_child_may_precede_its_parent_in_a_batch(api: Api) -> None:
    graph = enqueue_graph(api, {"grandchild": ["child"], "child": ["parent"], "parent": []})
    assert graph.states() == {"grandchild": "blocked", "child": "blocked", "parent": "ready"}
    graph.complete("parent", "child", "grandchild")


def test_depends_on_may_mix_refs_and_ids(api: Api) -> None:
    old = JobGraph(api, {"old": api.enqueue(job_type="old")["id"]})
    graph = enqueue_graph(api, {"new": [], "child": ["new", old.ids["old"]]})
    assert graph.job("child")["depends_on"] == [graph.ids["new"], old.ids["old"]]
    graph.complete("new")
    assert graph.state("child") == "blocked"
    old.complete("old")
    graph.complete("child")


def test_duplicate_parents_count_once(api: Api) -> None:
    graph = enqueue_graph(api, {"parent": [], "child": ["parent", "parent"]})
    again = api.enqueue(depends_on=[graph.ids["parent"], graph.ids["parent"].upper()])
    assert graph.job("child")["depends_on"] == again["depends_on"] == [graph.ids["parent"]]
    graph.complete("parent")
    wait_until(lambda: api.counts() == {"completed": 1, "ready": 2})


def test_job_with_empty_depends_on_is_ready(api: Api) -> None:
    job = api.enqueue(depends_on=[])
    assert (job["state"], "depends_on" in job) == ("ready", False)
    assert api.batch({"depends_on": []})["created"] == 1
    assert len(api.claim(max_jobs=5)["jobs"]) == 2


def test_child_waits_for_all_its_parents(api: Api) -> None:
    graph = enqueue_graph(api, {"a": [], "b": [], "c": [], "child": ["a", "b", "c"]})
    for name in "bca":
        assert graph.state("child") == "blocked"
        graph.complete(name)
    graph.complete("child")


def test_child_stays_blocked_while_its_parent_is_retried(api: Api, db: TestDatabase) -> None:
    graph = enqueue_pair(api)
    api.fail(graph.claim("parent"))
    assert graph.states() == {"parent": "scheduled", "child": "blocked"}
    api.post(f"/jobs/{graph.ids['parent']}/run-now")
    api.snooze(graph.claim("parent"), 0)
    api.release(graph.claim("parent"))
    assert graph.state("child") == "blocked"
    graph.complete("parent", "child")


def test_delayed_child_is_scheduled_when_its_parent_has_completed(api: Api, db: TestDatabase) -> None:
    graph = enqueue_pair(api, delay_seconds=3600)
    before = graph.job("child")
    assert before["state"] == "blocked"
    graph.complete("parent")
    graph.wait_for_states(child="scheduled")
    after = graph.job("child")
    assert ("state_reason" in after, parse_time(after["run_at"])) == (False, parse_time(before["run_at"]))
    assert api.counts() == {"completed": 1, "scheduled": 1}
    db.age(graph.ids["child"], 3601)
    graph.complete("child")


def test_delayed_child_that_is_due_by_then_becomes_ready(api: Api, db: TestDatabase) -> None:
    graph = enqueue_pair(api, delay_seconds=3600)
    db.age(graph.ids["child"], 3601)
    graph.complete("parent")
    graph.wait_for_states(child="ready")


def test_time_blocked_by_parents_is_not_time_waiting_for_a_worker(api: Api, db: TestDatabase) -> None:
    graph = enqueue_pair(api)
    db.age(graph.ids["child"], 3600)
    graph.complete("parent")
    graph.wait_for_states(child="ready")
    assert api.stats()["oldest_ready_age_seconds"] < 1800
    child = graph.job("child")
    assert parse_time(child["run_at"]) > parse_time(child["created_at"])


def test_unblocked_children_are_delivered_by_priority(api: Api) -> None:
    graph = enqueue_graph(
        api, {"parent": [], "low": ["parent"], "high": ["parent"]}, low={"priority": 1}, high={"priority": 2}
    )
    graph.complete("parent")
    graph.wait_for_states(low="ready", high="ready")
    assert [job["job_type"] for job in api.claim(max_jobs=2)["jobs"]] == ["high", "low"]


@pytest.mark.parametrize(
    "rules", [{"max_running_per_group": 1}, {"fair": True}, {"fair": True, "max_running_per_group": 1}]
)
def test_unblocked_children_of_a_group_wait_for_admission(api: Api, rules: Json) -> None:
    api.configure(**rules)
    graph = enqueue_graph(api, {"parent": [], "a": ["parent"], "b": ["parent"]}, a={"group": "g"}, b={"group": "g"})
    graph.complete("parent")
    graph.wait_for_states(a="ready", b="ready")
    claimed = api.claim_one(wait_seconds=20)
    if "max_running_per_group" in rules:
        assert api.claim()["jobs"] == []
    api.complete(claimed)
    api.complete(api.claim_one(wait_seconds=20))
    assert graph.states() == {"parent": "completed", "a": "completed", "b": "completed"}


def test_unblocked_child_waits_for_a_concurrency_slot(api: Api) -> None:
    api.configure(max_running=1)
    graph = enqueue_graph(api, {"other": [], "parent": [], "child": ["parent"]})
    graph.complete("parent")
    graph.wait_for_states(child="ready")
    claimed = graph.claim("other")
    assert api.claim()["jobs"] == []
    api.complete(claimed)
    graph.complete("child")


def test_blocked_child_counts_against_max_waiting(api: Api) -> None:
    api.configure(max_waiting=2)
    enqueue_pair(api)
    assert api.enqueue(status=429)["code"] == "queue_full"


def test_graph_may_span_queues_and_lanes(api: Api) -> None:
    api.configure(lanes=4)
    queues = {name: {"queue": f"{api.queue}-{name}"} for name in "ab"}
    graph = enqueue_graph(
        api, {"a": [], "b": [], "c": [], "d": [], "child": ["a", "b", "c", "d"], "last": ["child"]}, **queues
    )
    graph.complete(*"abcd")
    graph.complete("child", "last")
    assert set(graph.states().values()) == {"completed"}


def test_paused_queue_keeps_its_unblocked_children(api: Api) -> None:
    graph = enqueue_pair(api, queue=f"{api.queue}-paused")
    api.post(f"/queues/{api.queue}-paused/pause", {})
    graph.complete("parent")
    graph.wait_for_states(child="ready")
    assert api.claim(queues=[f"{api.queue}-paused"])["jobs"] == []
    api.post(f"/queues/{api.queue}-paused/resume")
    graph.complete("child")
