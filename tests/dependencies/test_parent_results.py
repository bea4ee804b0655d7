"""What a child learns of its parents when it is claimed."""

from tests.api import Api, Json
from tests.database import TestDatabase
from tests.dependencies.family import Family, born


def results(family: Family, name: str = "child") -> list[Json]:
    told: list[Json] = family.claim(name, parent_results=True)["parent_results"]
    return told


def test_results_come_in_the_order_of_depends_on(api: Api) -> None:
    family = born(api, {"a": [], "b": [], "c": [], "child": ["c", "a", "b"]})
    for name in "abc":
        family.complete(name, result={"of": name})
    told = [{"job_id": family.ids[name], "state": "completed", "result": {"of": name}} for name in "cab"]
    assert results(family) == told


def test_results_come_only_if_asked_for(api: Api) -> None:
    family = born(api, {"a": [], "child": ["a"]})
    family.complete("a", result=1)
    assert "parent_results" not in family.claim("child")
    family = born(api, {"a": [], "child": ["a"]})
    family.complete("a", result=1)
    assert "parent_results" not in family.claim("child", parent_results=False)


def test_a_job_without_parents_has_no_results_of_them(api: Api) -> None:
    family = born(api, {"a": []})
    assert results(family, "a") == []


def test_a_result_of_null_is_not_an_absent_one(api: Api) -> None:
    family = born(api, {"null": [], "none": [], "child": ["null", "none"]})
    family.complete("null", result=None)
    family.complete("none")
    null, none = results(family)
    assert null == {"job_id": family.ids["null"], "state": "completed", "result": None}
    assert none == {"job_id": family.ids["none"], "state": "completed"}


def test_parents_that_failed_are_told_as_they_ended(api: Api) -> None:
    family = born(api, {"a": [], "b": [], "child": ["a", "b"]}, child={"on_parent_failure": "run"})
    family.die("a")
    family.cancel("b")
    assert [one["state"] for one in results(family)] == ["dead", "cancelled"]


def test_a_parent_that_is_no_longer_kept_is_gone(api: Api, db: TestDatabase) -> None:
    family = born(api, {"a": [], "b": [], "child": ["a", "b"]})
    family.complete("a", "b", result=1)
    db.execute("UPDATE finished_jobs SET keep_until = now() - interval '1 minute' WHERE id = $1", family.ids["a"])
    assert results(family) == [
        {"job_id": family.ids["a"], "state": "gone"},
        {"job_id": family.ids["b"], "state": "completed", "result": 1},
    ]


def test_a_purged_parent_is_gone(api: Api) -> None:
    queue = f"{api.queue}-other"
    family = born(api, {"a": [], "child": ["a"]}, a={"queue": queue}, child={"on_parent_failure": "run"})
    api.post(f"/queues/{queue}/purge", {"dry_run": False})
    assert [one["state"] for one in results(family)] == ["gone"]


def test_parents_that_had_ended_before_are_told_too(api: Api) -> None:
    family = born(api, {"a": []})
    family.complete("a", result=[1])
    child = Family(api, {"child": api.enqueue(job_type="child", depends_on=[family.ids["a"]])["id"]})
    assert [one["result"] for one in results(child)] == [[1]]


def test_a_second_attempt_hears_the_same(api: Api) -> None:
    family = born(api, {"a": [], "child": ["a"]})
    family.complete("a", result=1)
    first = family.claim("child", parent_results=True)
    api.release(first)
    assert results(family) == first["parent_results"]


def test_a_repeated_claim_tells_the_same(api: Api) -> None:
    family = born(api, {"a": [], "child": ["a"]})
    family.complete("a", result=1)
    first = family.claim("child", parent_results=True, key="k")
    assert api.claim_one(parent_results=True, key="k") == first


def test_results_of_parents_in_other_queues_are_told(api: Api) -> None:
    family = born(
        api, {"a": [], "b": [], "child": ["a", "b"]}, a={"queue": f"{api.queue}-a"}, b={"queue": f"{api.queue}-b"}
    )
    family.complete("a", result="A")
    family.complete("b", result="B")
    assert [one["result"] for one in results(family)] == ["A", "B"]
