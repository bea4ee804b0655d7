"""Parents that do not complete: their children are cancelled with them, or run all the same."""

from collections.abc import Callable

import pytest

from tests.api import Api
from tests.database import TestDatabase
from tests.dependencies.family import Family, born, pair

End = Callable[[Family, TestDatabase], object]


def expire(family: Family, db: TestDatabase) -> None:
    db.execute("UPDATE jobs SET expires_at = now() - interval '1 second' WHERE id = $1", family.ids["parent"])


def crash(family: Family, db: TestDatabase) -> None:
    for _ in range(3):
        family.claim("parent")
        db.age(family.ids["parent"], 61)


def stop(family: Family, _: TestDatabase) -> None:
    held = family.claim("parent")
    family.cancel("parent", status=202)
    family.api.release(held)


def purge(family: Family, _: TestDatabase) -> None:
    family.api.post(f"/queues/{family.api.queue}/purge", {"states": ["ready"], "dry_run": False})


ENDS: dict[str, End] = {
    "dies": lambda family, _: family.die("parent"),
    "is cancelled": lambda family, _: family.cancel("parent"),
    "is stopped": stop,
    "expires": expire,
    "is poison": crash,
    "is purged": purge,
}


@pytest.mark.parametrize("end", ENDS)
def test_a_child_is_cancelled_with_its_parent_and_its_own_children_with_it(
    api: Api, db: TestDatabase, end: str
) -> None:
    family = born(api, {"parent": [], "child": ["parent"], "grandchild": ["child"], "last": ["grandchild"]})
    ENDS[end](family, db)
    family.become(child="cancelled", grandchild="cancelled", last="cancelled")
    for name in ("child", "grandchild", "last"):
        job = family.job(name)
        assert (job["state_reason"], "finished_at" in job, "cancel_requested_at" in job) == (
            "dependency_failed",
            True,
            False,
        )
    assert api.counts().get("blocked") is None
    assert api.counts()["cancelled"] == 3 + (family_state(api, family) == "cancelled")


def family_state(api: Api, family: Family) -> str:
    """Of the parent; a purged one has none."""
    response = api.http.get(f"/jobs/{family.ids['parent']}")
    return str(response.json()["state"]) if response.status_code == 200 else "gone"


@pytest.mark.parametrize("end", ENDS)
def test_a_child_that_runs_all_the_same_does(api: Api, db: TestDatabase, end: str) -> None:
    family = pair(api, on_parent_failure="run")
    ENDS[end](family, db)
    family.complete("child")


@pytest.mark.parametrize("end", ["die", "cancel"])
@pytest.mark.parametrize(("policy", "state"), [("cancel", "cancelled"), ("run", "ready")])
def test_a_parent_that_has_ended_badly_before_counts_as_it_ended(api: Api, end: str, policy: str, state: str) -> None:
    family = born(api, {"parent": []})
    getattr(family, end)("parent")
    child = api.enqueue(depends_on=[family.ids["parent"]], on_parent_failure=policy)
    assert child["state"] == state
    assert child.get("state_reason") == (None if policy == "run" else "dependency_failed")
    assert api.job(child["id"]) == child
    assert api.counts()[state] == 1 + (state == "cancelled" and end == "cancel")


def test_a_parent_that_has_completed_before_is_no_reason_to_wait(api: Api) -> None:
    family = born(api, {"parent": []})
    family.complete("parent")
    child = api.enqueue(depends_on=[family.ids["parent"]])
    assert (child["state"], "state_reason" in child, child["depends_on"]) == ("ready", False, [family.ids["parent"]])
    assert api.job(child["id"]) == child
    assert api.claim_one()["id"] == child["id"]


def test_a_child_with_a_completed_and_a_living_parent_waits_for_the_living_one(api: Api) -> None:
    done = born(api, {"done": []})
    done.complete("done")
    family = born(api, {"living": [], "child": ["living", done.ids["done"]]})
    assert family.state("child") == "blocked"
    assert len(family.job("child")["depends_on"]) == 2
    family.complete("living", "child")


def test_a_child_with_a_dead_and_a_living_parent_is_cancelled_at_once_and_its_children_too(api: Api) -> None:
    dead = born(api, {"dead": []})
    dead.die("dead")
    family = born(api, {"living": [], "child": ["living", dead.ids["dead"]], "grandchild": ["child"]})
    assert family.state("child") == "cancelled"
    family.become(grandchild="cancelled")
    assert family.state("living") == "ready"
    family.complete("living")
    assert family.state("child") == "cancelled"


def test_a_child_that_runs_all_the_same_waits_for_its_other_parents(api: Api) -> None:
    family = born(api, {"a": [], "b": [], "child": ["a", "b"]}, child={"on_parent_failure": "run"})
    family.die("a")
    family.cancel("b")
    family.complete("child")
    family = born(api, {"a": [], "b": [], "child": ["a", "b"]}, child={"on_parent_failure": "run"})
    family.die("a")
    family.become(child="blocked")
    family.complete("b", "child")


def test_one_parent_that_dies_is_enough_and_the_others_go_on(api: Api) -> None:
    family = born(api, {"a": [], "b": [], "c": [], "child": ["a", "b", "c"]})
    family.complete("a")
    family.die("b")
    family.become(child="cancelled")
    family.complete("c")
    assert family.states() == {"a": "completed", "b": "dead", "c": "completed", "child": "cancelled"}
    assert api.counts() == {"completed": 2, "dead": 1, "cancelled": 1}


def test_policies_are_each_childs_own(api: Api) -> None:
    policies = {"b": {"on_parent_failure": "run"}, "c": {"on_parent_failure": "cancel"}}
    family = born(api, {"parent": [], "a": ["parent"], "b": ["parent"], "c": ["parent"], "d": ["b"]}, **policies)
    family.die("parent")
    family.become(a="cancelled", c="cancelled", b="ready")
    assert family.state("d") == "blocked"
    family.complete("b", "d")


def test_a_child_of_a_cancelled_child_that_runs_all_the_same_does(api: Api) -> None:
    family = born(api, {"parent": [], "child": ["parent"], "cleanup": ["child"]}, cleanup={"on_parent_failure": "run"})
    family.die("parent")
    family.complete("cleanup")
    assert family.state("child") == "cancelled"


def test_whoever_waits_for_a_cancelled_child_hears_of_it(api: Api) -> None:
    family = pair(api)
    family.die("parent")
    assert api.job(family.ids["child"], wait_seconds=20)["state"] == "cancelled"


def test_replaying_the_parent_does_not_bring_its_children_back_and_new_ones_wait_for_it(api: Api) -> None:
    family = pair(api)
    family.die("parent")
    family.become(child="cancelled")
    api.post(f"/dead-letters/{family.ids['parent']}/replay")
    child = Family(api, {"new": api.enqueue(job_type="new", depends_on=[family.ids["parent"]])["id"]})
    assert child.state("new") == "blocked"
    family.complete("parent")
    child.complete("new")
    assert family.state("child") == "cancelled"


def test_a_parent_that_dies_twice_takes_the_children_of_each_time_with_it(api: Api) -> None:
    family = pair(api)
    family.die("parent")
    family.become(child="cancelled")
    api.post(f"/dead-letters/{family.ids['parent']}/replay")
    child = Family(api, {"new": api.enqueue(job_type="new", depends_on=[family.ids["parent"]])["id"]})
    family.die("parent")
    child.become(new="cancelled")


def test_a_child_that_dies_itself_can_be_replayed(api: Api) -> None:
    family = pair(api)
    family.complete("parent")
    family.die("child")
    replayed = api.post(f"/dead-letters/{family.ids['child']}/replay")
    assert (replayed["state"], replayed["depends_on"]) == ("ready", [family.ids["parent"]])
    family.complete("child")
