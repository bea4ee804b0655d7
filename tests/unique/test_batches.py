"""Unique keys in batches: of jobs that are there already, and of each other."""

import pytest

from tests.api import Api, Json
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.unique.keys import count_jobs, has


def statuses(answer: Json) -> list[str]:
    return [result["status"] for result in answer["results"]]


def ids(answer: Json) -> list[str]:
    return [result["job_id"] for result in answer["results"]]


def test_duplicates_are_told_with_the_jobs_that_are_there(api: Api) -> None:
    first = api.enqueue(**has("b"))
    answer = api.batch(has("a"), has("b"), {}, has("c"))
    assert statuses(answer) == ["created", "duplicate", "created", "created"]
    assert ids(answer)[1] == first["id"]
    assert (answer["created"], answer["duplicates"], "rejected" in answer) == (3, 1, False)
    assert api.counts() == {"ready": 4}


def test_a_batch_of_duplicates_alone_is_taken(api: Api) -> None:
    first = api.batch(has("a"), has("b"))
    again = api.batch(has("b"), has("a"))
    assert (again["created"], again["duplicates"]) == (0, 2)
    assert ids(again) == ids(first)[::-1]


def test_a_batch_of_a_thousand_keys_twice(api: Api, db: TestDatabase) -> None:
    jobs = [has(f"k{n}") for n in range(1000)]
    first, again = api.batch(*jobs), api.batch(*jobs[::-1])
    assert (first["created"], again["duplicates"]) == (1000, 1000)
    assert ids(again) == ids(first)[::-1]
    assert count_jobs(db) == 1000


def test_one_that_is_rejected_rejects_the_whole_batch(api: Api, db: TestDatabase) -> None:
    first = api.enqueue(**has("taken"))
    problem = api.batch({}, has("free"), {}, has("taken", on_duplicate="reject"), {}, status=409)
    assert (problem["code"], problem["existing_job_id"]) == ("duplicate_job", first["id"])
    assert [(error["pointer"], error["code"]) for error in problem["errors"]] == [
        ("/jobs/3/unique/key", "duplicate_job")
    ]
    assert count_jobs(db) == 1
    assert statuses(api.batch(has("free"))) == ["created"]


def test_all_that_are_rejected_are_pointed_at(api: Api) -> None:
    api.batch(has("a"), has("b"))
    problem = api.batch(*[has(key, on_duplicate="reject") for key in "acb"], status=409)
    assert [error["pointer"] for error in problem["errors"]] == ["/jobs/0/unique/key", "/jobs/2/unique/key"]


def test_a_rejected_batch_replaces_nothing(api: Api) -> None:
    first = api.enqueue(**has("a", payload=1))
    api.enqueue(**has("b"))
    api.batch(has("a", payload=2, on_duplicate="replace"), has("b", on_duplicate="reject"), status=409)
    assert api.job(first["id"])["payload"] == 1


def test_a_rejected_job_rejects_the_batch_with_409_also_if_others_depend_on_it(api: Api) -> None:
    api.enqueue(**has())
    problem = api.batch({"ref": "a", **has(on_duplicate="reject")}, {"depends_on": ["a"]}, status=409)
    assert [error["pointer"] for error in problem["errors"]] == ["/jobs/0/unique/key"]


def test_without_atomic_the_others_are_stored(api: Api) -> None:
    first = api.enqueue(**has("taken"))
    jobs = [
        {},
        has("taken", on_duplicate="reject"),
        has("taken"),
        {"job_type": "a b"},
        has("free", on_duplicate="reject"),
    ]
    answer = api.batch(*jobs, atomic=False, status=207)
    assert statuses(answer) == ["created", "rejected", "duplicate", "rejected", "created"]
    assert (answer["created"], answer["duplicates"], answer["rejected"]) == (2, 1, 2)
    problem = answer["results"][1]["problem"]
    assert (problem["code"], problem["status"], problem["existing_job_id"]) == ("duplicate_job", 409, first["id"])
    assert problem["errors"][0]["pointer"] == "/jobs/1/unique/key"
    assert api.counts() == {"ready": 3}


def test_the_second_of_a_batch_finds_the_first(api: Api) -> None:
    answer = api.batch(has(payload=1), has(payload=2), has(payload=3))
    assert statuses(answer) == ["created", "duplicate", "duplicate"]
    assert len(set(ids(answer))) == 1
    assert api.job(ids(answer)[0])["payload"] == 1
    assert api.counts() == {"ready": 1}


def test_the_second_of_a_batch_rejects(api: Api, db: TestDatabase) -> None:
    problem = api.batch(has(), has(on_duplicate="reject"), status=409)
    assert [error["pointer"] for error in problem["errors"]] == ["/jobs/1/unique/key"]
    assert count_jobs(db) == 0
    answer = api.batch(has(), has(on_duplicate="reject"), atomic=False, status=207)
    assert statuses(answer) == ["created", "rejected"]
    assert answer["results"][1]["problem"]["existing_job_id"] == ids(api.batch(has()))[0]


def test_the_second_of_a_batch_replaces(api: Api) -> None:
    jobs = [has(payload=1, group="g", priority=1), has(payload=2, tags=["t"], on_duplicate="replace", group="h")]
    answer = api.batch(*jobs)
    assert statuses(answer) == ["created", "duplicate"]
    job = api.job(ids(answer)[0])
    assert (job["payload"], job["group"], job["priority"], job["tags"]) == (2, "g", 0, ["t"])
    assert api.counts() == {"ready": 1}


@pytest.mark.parametrize(
    ("first", "second", "state"), [(0, 60, "scheduled"), (60, 0, "ready")], ids=["put off", "hurried"]
)
def test_the_second_of_a_batch_sets_the_time(api: Api, first: int, second: int, state: str) -> None:
    api.batch(has(delay_seconds=first), has(delay_seconds=second, on_duplicate="replace"))
    assert api.counts() == {state: 1}


@pytest.mark.parametrize("rules", [{"max_running_per_group": 1}, {"fair": True}], ids=["limited", "fair"])
@pytest.mark.parametrize(
    ("first", "second"), [({"group": "g"}, {}), ({}, {"group": "g"})], ids=["group first", "group second"]
)
def test_one_that_was_replaced_in_its_batch_gets_its_turn(api: Api, rules: Json, first: Json, second: Json) -> None:
    api.configure(**rules)
    answer = api.batch(has(**first), has(payload=2, on_duplicate="replace", **second))
    held = api.claim_one(wait_seconds=20)
    assert (held["id"], held["payload"], held.get("group")) == (ids(answer)[0], 2, first.get("group"))


def test_a_job_that_is_there_is_replaced_by_a_batch(api: Api) -> None:
    first = api.enqueue(**has(payload=1, delay_seconds=60))
    answer = api.batch(
        has(payload=2, delay_seconds=60, on_duplicate="replace"), {}, has(payload=3, on_duplicate="replace")
    )
    assert statuses(answer) == ["duplicate", "created", "duplicate"]
    job = api.job(first["id"])
    assert (job["payload"], job["state"]) == (3, "ready")
    assert api.counts() == {"ready": 2}


def test_the_same_key_in_several_queues_of_a_batch(api: Api) -> None:
    answer = api.batch(*[has(queue=f"{api.queue}-{n % 2}") for n in range(4)])
    assert statuses(answer) == ["created", "created", "duplicate", "duplicate"]
    assert ids(answer)[:2] == ids(answer)[2:]


def test_a_duplicate_of_one_that_finds_no_room_is_refused_like_it(api: Api, db: TestDatabase) -> None:
    api.configure(max_waiting=1)
    api.enqueue()
    answer = api.batch(has(), has(), atomic=False, status=207)
    assert statuses(answer) == ["rejected", "rejected"]
    assert {result["problem"]["code"] for result in answer["results"]} == {"queue_full"}
    assert count_jobs(db) == 1


def test_a_duplicate_of_one_that_was_refused_names_no_job_that_is_not_there(api: Api, db: TestDatabase) -> None:
    nobody = "01890000-0000-7000-8000-000000000000"
    answer = api.batch(has(depends_on=[nobody]), has(), atomic=False, status=207)
    assert statuses(answer) == ["rejected", "rejected"]
    assert count_jobs(db) == 0
    assert statuses(api.batch(has())) == ["created"]


def test_a_parent_that_is_a_duplicate_stands_for_the_job_that_has_the_key(api: Api) -> None:
    first = api.enqueue(job_type="parent", **has())
    child = ids(api.batch({"ref": "p", **has()}, {"job_type": "child", "depends_on": ["p"]}))[1]
    assert (api.job(child)["state"], api.job(child)["depends_on"]) == ("blocked", [first["id"]])
    api.complete(api.claim_one())
    assert api.claim_one(wait_seconds=20)["id"] == child


def test_a_parent_that_is_a_duplicate_of_another_in_its_batch_stands_for_that(api: Api) -> None:
    answer = api.batch({"ref": "a", **has()}, {"ref": "b", **has()}, {"depends_on": ["b"]}, {"depends_on": ["b", "b"]})
    parent, _, *children = ids(answer)
    assert [api.job(child)["depends_on"] for child in children] == [[parent], [parent]]
    api.complete(api.claim_one())
    wait_until(lambda: api.counts() == {"completed": 1, "ready": 2})


@pytest.mark.parametrize("atomic", [True, False])
def test_duplicates_of_a_batch_may_not_make_a_job_wait_for_itself(api: Api, db: TestDatabase, atomic: bool) -> None:
    jobs = [{"ref": "a", "depends_on": ["c"], **has()}, {"ref": "b", **has()}, {"ref": "c", "depends_on": ["b"]}]
    problem = api.batch(*jobs, atomic=atomic, status=422)
    assert [error["code"] for error in problem["errors"]] == ["cycle"]
    assert count_jobs(db) == 0
