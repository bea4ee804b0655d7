"""Dependencies together with keys: unique ones, and Idempotency-Keys."""

from tests.api import Api, Json
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.dependencies.family import Family, born
from tests.unique.keys import count_jobs, has


def test_a_blocked_job_has_its_unique_key(api: Api) -> None:
    family = born(api, {"parent": [], "child": ["parent"]}, child=has())
    again = api.enqueue(status=200, **has())
    assert (again["id"], again["state"]) == (family.ids["child"], "blocked")
    assert api.enqueue(status=409, **has(on_duplicate="reject"))["existing_job_id"] == family.ids["child"]


def test_a_duplicate_does_not_take_other_parents(api: Api) -> None:
    family = born(api, {"a": [], "b": [], "child": ["a"]}, child=has())
    again = api.enqueue(status=200, depends_on=[family.ids["b"]], **has())
    assert (again["id"], again["depends_on"]) == (family.ids["child"], [family.ids["a"]])
    family.complete("a", "child")


def test_a_child_that_is_cancelled_with_its_parent_gives_its_key_free(api: Api) -> None:
    family = born(api, {"parent": [], "child": ["parent"]}, child=has())
    family.die("parent")
    family.become(child="cancelled")
    assert api.enqueue(**has())["id"] != family.ids["child"]


def test_a_child_that_is_cancelled_as_it_comes_takes_no_key(api: Api) -> None:
    family = born(api, {"parent": []})
    family.die("parent")
    child = api.enqueue(depends_on=[family.ids["parent"]], **has())
    assert child["state"] == "cancelled"
    assert api.enqueue(**has())["id"] != child["id"]


def test_a_unique_parent_that_ended_within_its_window_counts_as_it_ended(api: Api) -> None:
    parent = Family(api, {"p": api.enqueue(job_type="p", **has(for_seconds=60))["id"]})
    parent.complete("p")
    answer = api.batch({"ref": "p", **has()}, {"depends_on": ["p"]})
    assert [result["status"] for result in answer["results"]] == ["duplicate", "created"]
    child = api.job(answer["results"][1]["job_id"])
    assert (child["state"], child["depends_on"]) == ("ready", [parent.ids["p"]])


def test_a_unique_parent_in_another_queue_is_waited_for(api: Api) -> None:
    queue = f"{api.queue}-other"
    first = api.enqueue(queue=queue, **has())
    answer = api.batch(
        {"ref": "p", "queue": queue, **has()}, {"ref": "c", "depends_on": ["p"]}, {"depends_on": ["c", "p"]}
    )
    _, child, last = [result["job_id"] for result in answer["results"]]
    assert (api.job(child)["depends_on"], api.job(last)["depends_on"]) == ([first["id"]], [child, first["id"]])
    api.complete(api.claim_one(queues=[queue]))
    for job_id in (child, last):
        held = api.claim_one(wait_seconds=20)
        assert held["id"] == job_id
        api.complete(held)


def test_a_first_that_is_replaced_in_its_batch_keeps_its_parents(api: Api) -> None:
    answer = api.batch(
        {"ref": "p", "job_type": "p"}, {"depends_on": ["p"], **has()}, has(payload=2, on_duplicate="replace")
    )
    child = answer["results"][1]["job_id"]
    assert answer["results"][2] == {"index": 2, "status": "duplicate", "job_id": child}
    assert (api.job(child)["state"], api.job(child)["payload"]) == ("blocked", 2)
    api.complete(api.claim_one())
    assert api.claim_one(wait_seconds=20)["payload"] == 2


def test_a_repeated_enqueue_gives_the_same_child(api: Api, db: TestDatabase) -> None:
    parent = api.enqueue(job_type="parent")
    first = api.enqueue(key="k", depends_on=[parent["id"]])
    assert api.enqueue(key="k", depends_on=[parent["id"]]) == first
    api.complete(api.claim_one())
    wait_until(lambda: api.job(first["id"])["state"] == "ready")
    again = api.enqueue(key="k", depends_on=[parent["id"]])
    assert (again["id"], again["state"]) == (first["id"], "ready")
    assert count_jobs(db) == 2


def test_a_repeated_enqueue_does_not_ask_for_the_parents_again(api: Api) -> None:
    parent = api.enqueue()
    first = api.enqueue(key="k", depends_on=[parent["id"]], on_parent_failure="run")
    api.post(f"/queues/{api.queue}/purge", {"states": ["ready"], "dry_run": False})
    assert api.enqueue(key="k", depends_on=[parent["id"]], on_parent_failure="run")["id"] == first["id"]


def test_another_parent_is_another_body(api: Api) -> None:
    one, two = api.enqueue(), api.enqueue()
    api.enqueue(key="k", depends_on=[one["id"]])
    assert api.enqueue(status=422, key="k", depends_on=[two["id"]])["code"] == "idempotency_key_reused"


def test_a_repeated_batch_gives_the_same_family(api: Api, db: TestDatabase) -> None:
    jobs: list[Json] = [{"ref": "a"}, {"ref": "b", "depends_on": ["a"]}, {"depends_on": ["a", "b"]}]
    first = api.batch(*jobs, key="k")
    assert api.batch(*jobs, key="k") == first
    assert count_jobs(db) == 3
    assert db.value("SELECT count(*) FROM dependents WHERE parent = $1", first["results"][0]["job_id"]) == 2


def test_a_refused_family_uses_no_key_up(api: Api) -> None:
    jobs: list[Json] = [{"ref": "a", "depends_on": ["a"]}]
    api.batch(*jobs, key="k", status=422)
    assert api.batch({"ref": "a"}, key="k")["created"] == 1
