"""Dependencies with unique keys and with Idempotency-Keys."""

from tests.api.dependencies.job_graph import JobGraph, enqueue_graph
from tests.api.unique_keys.keys import count_jobs, with_key
from tests.api_client import Api, Json
from tests.conftest import wait_until
from tests.database import TestDatabase


def test_blocked_job_has_its_unique_key(api: Api) -> None:
    graph = enqueue_graph(api, {"parent": [], "child": ["parent"]}, child=with_key())
    again = api.enqueue(status=200, **with_key())
    assert (again["id"], again["state"]) == (graph.ids["child"], "blocked")
    assert api.enqueue(status=409, **with_key(on_duplicate="reject"))["existing_job_id"] == graph.ids["child"]


def test_duplicate_keeps_the_parents_of_the_existing_job(api: Api) -> None:
    graph = enqueue_graph(api, {"a": [], "b": [], "child": ["a"]}, child=with_key())
    again = api.enqueue(status=200, depends_on=[graph.ids["b"]], **with_key())
    assert (again["id"], again["depends_on"]) == (graph.ids["child"], [graph.ids["a"]])
    graph.complete("a", "child")


def test_child_cancelled_with_its_parent_frees_its_unique_key(api: Api) -> None:
    graph = enqueue_graph(api, {"parent": [], "child": ["parent"]}, child=with_key())
    graph.fail_permanently("parent")
    graph.wait_for_states(child="cancelled")
    assert api.enqueue(**with_key())["id"] != graph.ids["child"]


def test_child_cancelled_on_enqueue_acquires_no_unique_key(api: Api) -> None:
    graph = enqueue_graph(api, {"parent": []})
    graph.fail_permanently("parent")
    child = api.enqueue(depends_on=[graph.ids["parent"]], **with_key())
    assert child["state"] == "cancelled"
    assert api.enqueue(**with_key())["id"] != child["id"]


def test_finished_duplicate_parent_within_its_window_does_not_block_the_child(api: Api) -> None:
    parent = JobGraph(api, {"p": api.enqueue(job_type="p", **with_key(for_seconds=60))["id"]})
    parent.complete("p")
    answer = api.batch({"ref": "p", **with_key()}, {"depends_on": ["p"]})
    assert [result["status"] for result in answer["results"]] == ["duplicate", "created"]
    child = api.job(answer["results"][1]["job_id"])
    assert (child["state"], child["depends_on"]) == ("ready", [parent.ids["p"]])


def test_child_waits_for_a_duplicate_parent_in_another_queue(api: Api) -> None:
    queue = f"{api.queue}-other"
    first = api.enqueue(queue=queue, **with_key())
    answer = api.batch(
        {"ref": "p", "queue": queue, **with_key()}, {"ref": "c", "depends_on": ["p"]}, {"depends_on": ["c", "p"]}
    )
    _, child, last = [result["job_id"] for result in answer["results"]]
    assert (api.job(child)["depends_on"], api.job(last)["depends_on"]) == ([first["id"]], [child, first["id"]])
    api.complete(api.claim_one(queues=[queue]))
    for job_id in (child, last):
        claimed = api.claim_one(wait_seconds=20)
        assert claimed["id"] == job_id
        api.complete(claimed)


def test_job_replaced_within_its_batch_keeps_its_parents(api: Api) -> None:
    answer = api.batch(
        {"ref": "p", "job_type": "p"}, {"depends_on": ["p"], **with_key()}, with_key(payload=2, on_duplicate="replace")
    )
    child = answer["results"][1]["job_id"]
    assert answer["results"][2] == {"index": 2, "status": "duplicate", "job_id": child}
    assert (api.job(child)["state"], api.job(child)["payload"]) == ("blocked", 2)
    api.complete(api.claim_one())
    assert api.claim_one(wait_seconds=20)["payload"] == 2


def test_repeated_enqueue_returns_the_same_child(api: Api, db: TestDatabase) -> None:
    parent = api.enqueue(job_type="parent")
    first = api.enqueue(key="k", depends_on=[parent["id"]])
    assert api.enqueue(key="k", depends_on=[parent["id"]]) == first
    api.complete(api.claim_one())
    wait_until(lambda: api.job(first["id"])["state"] == "ready")
    again = api.enqueue(key="k", depends_on=[parent["id"]])
    assert (again["id"], again["state"]) == (first["id"], "ready")
    assert count_jobs(db) == 2


def test_repeated_enqueue_does_not_check_the_parents_again(api: Api) -> None:
    parent = api.enqueue(queue=f"{api.queue}-parents")  # the purge must not find the unblocked child
    first = api.enqueue(key="k", depends_on=[parent["id"]], on_parent_failure="run")
    api.post(f"/queues/{parent['queue']}/purge", {"states": ["ready"], "dry_run": False})
    assert api.enqueue(key="k", depends_on=[parent["id"]], on_parent_failure="run")["id"] == first["id"]


def test_another_parent_is_another_body_for_the_idempotency_key(api: Api) -> None:
    parent, other_parent = api.enqueue(), api.enqueue()
    api.enqueue(key="k", depends_on=[parent["id"]])
    assert api.enqueue(status=422, key="k", depends_on=[other_parent["id"]])["code"] == "idempotency_key_reused"


def test_repeated_batch_returns_the_same_graph(api: Api, db: TestDatabase) -> None:
    jobs: list[Json] = [{"ref": "a"}, {"ref": "b", "depends_on": ["a"]}, {"depends_on": ["a", "b"]}]
    first = api.batch(*jobs, key="k")
    assert api.batch(*jobs, key="k") == first
    assert count_jobs(db) == 3
    assert db.value("SELECT count(*) FROM dependents WHERE parent_id = $1", first["results"][0]["job_id"]) == 2


def test_rejected_graph_does_not_use_up_its_idempotency_key(api: Api) -> None:
    jobs: list[Json] = [{"ref": "a", "depends_on": ["a"]}]
    api.batch(*jobs, key="k", status=422)
    assert api.batch({"ref": "a"}, key="k")["created"] == 1
