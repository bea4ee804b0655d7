"""Operations on blocked jobs, their counts and their lists."""

from tests.api.dependencies.job_graph import enqueue_graph, enqueue_pair
from tests.api_client import Api, parse_time
from tests.conftest import wait_until
from tests.database import TestDatabase


def test_patched_blocked_job_stays_blocked(api: Api, db: TestDatabase) -> None:
    graph = enqueue_pair(api)
    change = {
        "priority": 5,
        "payload": [1],
        "run_at": db.instant(3600),
        "max_attempts": 2,
        "tags": ["t"],
        "metadata": {"a": 1},
    }
    changed = api.patch(f"/jobs/{graph.ids['child']}", change)
    assert (changed["state"], changed["state_reason"]) == ("blocked", "waiting_for_jobs")
    assert {name: changed[name] for name in change if name != "run_at"} == {
        name: change[name] for name in change if name != "run_at"
    }
    assert parse_time(changed["run_at"]) == parse_time(str(change["run_at"]))
    assert api.counts() == {"ready": 1, "blocked": 1}
    graph.complete("parent")
    graph.wait_for_states(child="scheduled")


def test_postponed_blocked_job_can_be_advanced(api: Api, db: TestDatabase) -> None:
    graph = enqueue_pair(api, delay_seconds=3600)
    assert api.patch(f"/jobs/{graph.ids['child']}", {"run_at": db.instant(-5)})["state"] == "blocked"
    graph.complete("parent", "child")


def test_blocked_job_cannot_be_run_now(api: Api) -> None:
    graph = enqueue_pair(api)
    problem = api.post(f"/jobs/{graph.ids['child']}/run-now", status=409)
    assert (problem["code"], problem["state"]) == ("wrong_state", "blocked")


def test_blocked_job_can_be_cancelled(api: Api) -> None:
    graph = enqueue_graph(api, {"parent": [], "child": ["parent"], "grandchild": ["child"]})
    cancelled = graph.cancel("child")
    assert (cancelled["state"], cancelled["state_reason"]) == ("cancelled", "cancelled_by_user")
    graph.wait_for_states(grandchild="cancelled")
    graph.complete("parent")
    assert graph.states() == {"parent": "completed", "child": "cancelled", "grandchild": "cancelled"}
    assert api.counts() == {"completed": 1, "cancelled": 2}


def test_blocked_jobs_are_listed_and_cancelled_by_filter(api: Api) -> None:
    graph = enqueue_pair(api)
    (listed,) = api.get("/jobs", queue=api.queue, state="blocked")["items"]
    assert listed == graph.job("child")
    answer = api.post("/jobs/cancel", {"filter": {"queue": api.queue, "state": "blocked"}})
    assert (answer["matched"], answer["cancelled"]) == (1, 1)
    assert graph.states() == {"parent": "ready", "child": "cancelled"}


def test_blocked_jobs_can_be_purged(api: Api) -> None:
    graph = enqueue_pair(api)
    assert api.post(f"/queues/{api.queue}/purge", {"states": ["blocked"], "dry_run": False})["purged"] == 1
    api.get(f"/jobs/{graph.ids['child']}", status=404)
    graph.complete("parent")
    assert api.counts() == {"completed": 1}


def test_counts_are_exact_through_the_life_of_a_graph(api: Api) -> None:
    graph = enqueue_graph(
        api, {"a": [], "b": ["a"], "c": ["a", "b"], "d": ["c"], "e": ["a"]}, e={"delay_seconds": 3600}
    )
    assert api.counts() == {"ready": 1, "blocked": 4}
    graph.complete("a")
    wait_until(lambda: api.counts() == {"completed": 1, "ready": 1, "blocked": 2, "scheduled": 1})
    graph.cancel("e")
    graph.complete("b")
    wait_until(lambda: api.counts() == {"completed": 2, "ready": 1, "blocked": 1, "cancelled": 1})
    graph.fail_permanently("c")
    wait_until(lambda: api.counts() == {"completed": 2, "dead": 1, "cancelled": 2})


def test_finished_graph_leaves_no_dependency_rows(api: Api, db: TestDatabase) -> None:
    graph = enqueue_graph(api, {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]})
    graph.complete("a", "b")
    graph.fail_permanently("c")
    graph.wait_for_states(d="cancelled")
    ids = list(graph.ids.values())
    wait_until(lambda: db.value("SELECT count(*) FROM finished_parents WHERE id = ANY($1::uuid[])", ids) == 0)
    assert db.value("SELECT count(*) FROM dependents WHERE parent_id = ANY($1::uuid[])", ids) == 0
