"""A job waits for others, and goes on when they have completed."""

import pytest

from tests.api import Api, Json, when
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.dependencies.family import Family, born, pair
from tests.polls import Background


def test_a_job_waits_for_another_by_its_id(api: Api) -> None:
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


def test_a_child_is_claimed_after_its_parent_has_completed(api: Api) -> None:
    family = pair(api)
    assert [job["id"] for job in api.claim(max_jobs=5)["jobs"]] == [family.ids["parent"]]
    family = pair(api)
    family.complete("parent")
    family.complete("child")
    assert family.states() == {"parent": "completed", "child": "completed"}


def test_a_released_child_is_told_as_any_other_and_still_names_its_parents(api: Api) -> None:
    family = pair(api)
    family.complete("parent")
    family.become(child="ready")
    job = family.job("child")
    assert ("state_reason" in job, job["depends_on"]) == (False, [family.ids["parent"]])
    family.complete("child")
    assert family.job("child")["depends_on"] == [family.ids["parent"]]


def test_a_released_child_wakes_a_poll(api: Api, background: Background) -> None:
    family = pair(api)
    poll = background.claim(api, job_types=["child"])
    family.complete("parent")
    assert [job["id"] for job in poll.result(20)["jobs"]] == [family.ids["child"]]


def test_a_child_may_stand_before_its_parent(api: Api) -> None:
    family = born(api, {"grandchild": ["child"], "child": ["parent"], "parent": []})
    assert family.states() == {"grandchild": "blocked", "child": "blocked", "parent": "ready"}
    family.complete("parent", "child", "grandchild")


def test_refs_and_ids_go_together(api: Api) -> None:
    old = Family(api, {"old": api.enqueue(job_type="old")["id"]})
    family = born(api, {"new": [], "child": ["new", old.ids["old"]]})
    assert family.job("child")["depends_on"] == [family.ids["new"], old.ids["old"]]
    family.complete("new")
    assert family.state("child") == "blocked"
    old.complete("old")
    family.complete("child")


def test_a_parent_that_is_named_twice_is_one(api: Api) -> None:
    family = born(api, {"parent": [], "child": ["parent", "parent"]})
    again = api.enqueue(depends_on=[family.ids["parent"], family.ids["parent"].upper()])
    assert family.job("child")["depends_on"] == again["depends_on"] == [family.ids["parent"]]
    family.complete("parent")
    wait_until(lambda: api.counts() == {"completed": 1, "ready": 2})


def test_no_parents_are_no_reason_to_wait(api: Api) -> None:
    job = api.enqueue(depends_on=[])
    assert (job["state"], "depends_on" in job) == ("ready", False)
    assert api.batch({"depends_on": []})["created"] == 1
    assert len(api.claim(max_jobs=5)["jobs"]) == 2


def test_a_child_waits_for_all_its_parents(api: Api) -> None:
    family = born(api, {"a": [], "b": [], "c": [], "child": ["a", "b", "c"]})
    for name in "bca":
        assert family.state("child") == "blocked"
        family.complete(name)
    family.complete("child")


def test_a_retry_of_the_parent_changes_nothing(api: Api, db: TestDatabase) -> None:
    family = pair(api)
    api.fail(family.claim("parent"))
    assert family.states() == {"parent": "scheduled", "child": "blocked"}
    api.post(f"/jobs/{family.ids['parent']}/run-now")
    api.snooze(family.claim("parent"), 0)
    api.release(family.claim("parent"))
    assert family.state("child") == "blocked"
    family.complete("parent", "child")


def test_a_delayed_child_is_scheduled_when_its_parent_has_completed(api: Api, db: TestDatabase) -> None:
    family = pair(api, delay_seconds=3600)
    before = family.job("child")
    assert before["state"] == "blocked"
    family.complete("parent")
    family.become(child="scheduled")
    after = family.job("child")
    assert ("state_reason" in after, when(after["run_at"])) == (False, when(before["run_at"]))
    assert api.counts() == {"completed": 1, "scheduled": 1}
    db.age(family.ids["child"], 3601)
    family.complete("child")


def test_a_child_whose_time_has_come_meanwhile_is_ready(api: Api, db: TestDatabase) -> None:
    family = pair(api, delay_seconds=3600)
    db.age(family.ids["child"], 3601)
    family.complete("parent")
    family.become(child="ready")


def test_the_time_that_a_child_waits_for_its_parents_is_no_time_that_it_waits_for_a_worker(
    api: Api, db: TestDatabase
) -> None:
    family = pair(api)
    db.age(family.ids["child"], 3600)
    family.complete("parent")
    family.become(child="ready")
    assert api.stats()["oldest_ready_age_seconds"] < 1800
    child = family.job("child")
    assert when(child["run_at"]) > when(child["created_at"])


def test_children_are_handed_out_by_priority(api: Api) -> None:
    family = born(api, {"parent": [], "low": ["parent"], "high": ["parent"]}, low={"priority": 1}, high={"priority": 2})
    family.complete("parent")
    family.become(low="ready", high="ready")
    assert [job["job_type"] for job in api.claim(max_jobs=2)["jobs"]] == ["high", "low"]


@pytest.mark.parametrize(
    "rules", [{"max_running_per_group": 1}, {"fair": True}, {"fair": True, "max_running_per_group": 1}]
)
def test_children_of_a_group_wait_for_their_turn(api: Api, rules: Json) -> None:
    api.configure(**rules)
    family = born(api, {"parent": [], "a": ["parent"], "b": ["parent"]}, a={"group": "g"}, b={"group": "g"})
    family.complete("parent")
    family.become(a="ready", b="ready")
    held = api.claim_one(wait_seconds=20)
    if "max_running_per_group" in rules:
        assert api.claim()["jobs"] == []
    api.complete(held)
    api.complete(api.claim_one(wait_seconds=20))
    assert family.states() == {"parent": "completed", "a": "completed", "b": "completed"}


def test_a_child_in_a_full_house_waits_for_a_place(api: Api) -> None:
    api.configure(max_running=1)
    family = born(api, {"other": [], "parent": [], "child": ["parent"]})
    family.complete("parent")
    family.become(child="ready")
    held = family.claim("other")
    assert api.claim()["jobs"] == []
    api.complete(held)
    family.complete("child")


def test_a_blocked_child_counts_as_waiting(api: Api) -> None:
    api.configure(max_waiting=2)
    pair(api)
    assert api.enqueue(status=429)["code"] == "queue_full"


def test_a_family_may_live_in_many_queues_and_lanes(api: Api) -> None:
    api.configure(lanes=4)
    queues = {name: {"queue": f"{api.queue}-{name}"} for name in "ab"}
    family = born(api, {"a": [], "b": [], "c": [], "d": [], "child": ["a", "b", "c", "d"], "last": ["child"]}, **queues)
    family.complete(*"abcd")
    family.complete("child", "last")
    assert set(family.states().values()) == {"completed"}


def test_a_paused_queue_keeps_its_released_children(api: Api) -> None:
    family = pair(api, queue=f"{api.queue}-paused")
    api.post(f"/queues/{api.queue}-paused/pause", {})
    family.complete("parent")
    family.become(child="ready")
    assert api.claim(queues=[f"{api.queue}-paused"])["jobs"] == []
    api.post(f"/queues/{api.queue}-paused/resume")
    family.complete("child")
