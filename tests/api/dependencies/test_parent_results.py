"""parent_results: states and results of the parents, returned by a claim."""

from tests.api.dependencies.job_graph import JobGraph, enqueue_graph
from tests.api_client import Api, Json
from tests.database import TestDatabase


def parent_results(graph: JobGraph, name: str = "child") -> list[Json]:
    results: list[Json] = graph.claim(name, parent_results=True)["parent_results"]
    return results


def test_parent_results_are_in_the_order_of_depends_on(api: Api) -> None:
    graph = enqueue_graph(api, {"a": [], "b": [], "c": [], "child": ["c", "a", "b"]})
    for name in "abc":
        graph.complete(name, result={"of": name})
    expected = [{"job_id": graph.ids[name], "state": "completed", "result": {"of": name}} for name in "cab"]
    assert parent_results(graph) == expected


def test_parent_results_are_returned_only_on_request(api: Api) -> None:
    graph = enqueue_graph(api, {"a": [], "child": ["a"]})
    graph.complete("a", result=1)
    assert "parent_results" not in graph.claim("child")
    graph = enqueue_graph(api, {"a": [], "child": ["a"]})
    graph.complete("a", result=1)
    assert "parent_results" not in graph.claim("child", parent_results=False)


def test_job_without_parents_has_empty_parent_results(api: Api) -> None:
    graph = enqueue_graph(api, {"a": []})
    assert parent_results(graph, "a") == []


def test_null_result_of_a_parent_differs_from_an_absent_one(api: Api) -> None:
    graph = enqueue_graph(api, {"null": [], "none": [], "child": ["null", "none"]})
    graph.complete("null", result=None)
    graph.complete("none")
    null, none = parent_results(graph)
    assert null == {"job_id": graph.ids["null"], "state": "completed", "result": None}
    assert none == {"job_id": graph.ids["none"], "state": "completed"}


def test_parent_results_include_failed_parents_with_their_state(api: Api) -> None:
    graph = enqueue_graph(api, {"a": [], "b": [], "child": ["a", "b"]}, child={"on_parent_failure": "run"})
    graph.fail_permanently("a")
    graph.cancel("b")
    assert [parent["state"] for parent in parent_results(graph)] == ["dead", "cancelled"]


def test_parent_past_its_retention_is_gone(api: Api, db: TestDatabase) -> None:
    graph = enqueue_graph(api, {"a": [], "b": [], "child": ["a", "b"]})
    graph.complete("a", "b", result=1)
    db.execute("UPDATE finished_jobs SET keep_until = now() - interval '1 minute' WHERE id = $1", graph.ids["a"])
    assert parent_results(graph) == [
        {"job_id": graph.ids["a"], "state": "gone"},
        {"job_id": graph.ids["b"], "state": "completed", "result": 1},
    ]


def test_purged_parent_is_gone(api: Api) -> None:
    queue = f"{api.queue}-other"
    graph = enqueue_graph(api, {"a": [], "child": ["a"]}, a={"queue": queue}, child={"on_parent_failure": "run"})
    api.post(f"/queues/{queue}/purge", {"dry_run": False})
    assert [parent["state"] for parent in parent_results(graph)] == ["gone"]


def test_replayed_parent_is_gone_until_it_ends_again(api: Api) -> None:
    def release_child() -> Json:
        claimed = graph.claim("child", parent_results=True)
        api.release(claimed)
        (parent,) = claimed["parent_results"]
        assert parent.pop("job_id") == graph.ids["a"]
        return dict(parent)

    graph = enqueue_graph(api, {"a": [], "child": ["a"]}, child={"on_parent_failure": "run"})
    graph.fail_permanently("a")
    assert release_child() == {"state": "dead"}
    api.post(f"/dead-letters/{graph.ids['a']}/replay")
    assert release_child() == {"state": "gone"}
    graph.complete("a", result=1)
    assert release_child() == {"state": "completed", "result": 1}


def test_parent_results_include_parents_finished_before_the_enqueue(api: Api) -> None:
    graph = enqueue_graph(api, {"a": []})
    graph.complete("a", result=[1])
    child = JobGraph(api, {"child": api.enqueue(job_type="child", depends_on=[graph.ids["a"]])["id"]})
    assert [parent["result"] for parent in parent_results(child)] == [[1]]


def test_second_delivery_has_the_same_parent_results(api: Api) -> None:
    graph = enqueue_graph(api, {"a": [], "child": ["a"]})
    graph.complete("a", result=1)
    first = graph.claim("child", parent_results=True)
    api.release(first)
    assert parent_results(graph) == first["parent_results"]


def test_repeated_claim_returns_the_same_parent_results(api: Api) -> None:
    graph = enqueue_graph(api, {"a": [], "child": ["a"]})
    graph.complete("a", result=1)
    first = graph.claim("child", parent_results=True, key="k")
    assert api.claim_one(parent_results=True, key="k") == first


def test_parent_results_include_parents_in_other_queues(api: Api) -> None:
    graph = enqueue_graph(
        api, {"a": [], "b": [], "child": ["a", "b"]}, a={"queue": f"{api.queue}-a"}, b={"queue": f"{api.queue}-b"}
    )
    graph.complete("a", result="A")
    graph.complete("b", result="B")
    assert [parent["result"] for parent in parent_results(graph)] == ["A", "B"]


def test_results_beyond_the_size_of_a_response_are_omitted(api: Api) -> None:
    """Every child repeats the results of all parents: 50 MB in all, where a response has at most 8."""
    parents = [f"p{number}" for number in range(20)]
    children = [f"c{number}" for number in range(10)]
    graph = enqueue_graph(api, {name: [] for name in parents} | dict.fromkeys(children, parents))
    graph.complete(*parents, result="x" * 250_000)
    graph.wait_for_states(**dict.fromkeys(children, "ready"))
    response = api.http.post(
        "/claim", json={"queues": [api.queue], "job_types": children, "max_jobs": 10, "parent_results": True}
    )
    results = [parent for job in response.json()["jobs"] for parent in job["parent_results"]]
    assert len(response.content) < 9_000_000
    assert len(results) == 200
    assert sum("result" in parent for parent in results) == 8 * 1024 * 1024 // 250_002
    assert all(("result" in parent) != parent.get("result_omitted", False) for parent in results)
