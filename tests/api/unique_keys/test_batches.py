"""Unique keys in batches: duplicates of existing jobs, and of jobs in the same batch."""

import pytest

from tests.api.unique_keys.keys import count_jobs, with_key
from tests.api_client import Api, Json
from tests.conftest import wait_until
from tests.database import TestDatabase


def statuses(answer: Json) -> list[str]:
    return [result["status"] for result in answer["results"]]


def ids(answer: Json) -> list[str]:
    return [result["job_id"] for result in answer["results"]]


def test_batch_reports_duplicates_with_the_existing_jobs(api: Api) -> None:
    first = api.enqueue(**with_key("b"))
    answer = api.batch(with_key("a"), with_key("b"), {}, with_key("c"))
    assert statuses(answer) == ["created", "duplicate", "created", "created"]
    assert ids(answer)[1] == first["id"]
    assert (answer["created"], answer["duplicates"], "rejected" in answer) == (3, 1, False)
    assert api.counts() == {"ready": 4}


def test_batch_of_only_duplicates_is_accepted(api: Api) -> None:
    first = api.batch(with_key("a"), with_key("b"))
    again = api.batch(with_key("b"), with_key("a"))
    assert (again["created"], again["duplicates"]) == (0, 2)
    assert ids(again) == ids(first)[::-1]


def test_batch_of_a_thousand_unique_keys_repeated_creates_no_job(api: Api, db: TestDatabase) -> None:
    jobs = [with_key(f"k{n}") for n in range(1000)]
    first, again = api.batch(*jobs), api.batch(*jobs[::-1])
    assert (first["created"], again["duplicates"]) == (1000, 1000)
    assert ids(again) == ids(first)[::-1]
    assert count_jobs(db) == 1000


def test_rejected_duplicate_rejects_the_whole_atomic_batch(api: Api, db: TestDatabase) -> None:
    first = api.enqueue(**with_key("taken"))
    problem = api.batch({}, with_key("free"), {}, with_key("taken", on_duplicate="reject"), {}, status=409)
    assert (problem["code"], problem["existing_job_id"]) == ("duplicate_job", first["id"])
    assert [(error["pointer"], error["code"]) for error in problem["errors"]] == [
        ("/jobs/3/unique/key", "duplicate_job")
    ]
    assert count_jobs(db) == 1
    assert statuses(api.batch(with_key("free"))) == ["created"]


def test_problem_points_at_all_rejected_duplicates(api: Api) -> None:
    api.batch(with_key("a"), with_key("b"))
    problem = api.batch(*[with_key(key, on_duplicate="reject") for key in "acb"], status=409)
    assert [error["pointer"] for error in problem["errors"]] == ["/jobs/0/unique/key", "/jobs/2/unique/key"]


def test_rejected_batch_replaces_nothing(api: Api) -> None:
    first = api.enqueue(**with_key("a", payload=1))
    api.enqueue(**with_key("b"))
    api.batch(with_key("a", payload=2, on_duplicate="replace"), with_key("b", on_duplicate="reject"), status=409)
    assert api.job(first["id"])["payload"] == 1


def test_rejected_duplicate_with_children_rejects_the_batch_with_409(api: Api) -> None:
    api.enqueue(**with_key())
    problem = api.batch({"ref": "a", **with_key(on_duplicate="reject")}, {"depends_on": ["a"]}, status=409)
    assert [error["pointer"] for error in problem["errors"]] == ["/jobs/0/unique/key"]


def test_non_atomic_batch_stores_jobs_beside_rejected_duplicates(api: Api) -> None:
    first = api.enqueue(**with_key("taken"))
    jobs = [
        {},
        with_key("taken", on_duplicate="reject"),
        with_key("taken"),
        {"job_type": "a b"},
        with_key("free", on_duplicate="reject"),
    ]
    answer = api.batch(*jobs, atomic=False, status=207)
    assert statuses(answer) == ["created", "rejected", "duplicate", "rejected", "created"]
    assert (answer["created"], answer["duplicates"], answer["rejected"]) == (2, 1, 2)
    problem = answer["results"][1]["problem"]
    assert (problem["code"], problem["status"], problem["existing_job_id"]) == ("duplicate_job", 409, first["id"])
    assert problem["errors"][0]["pointer"] == "/jobs/1/unique/key"
    assert api.counts() == {"ready": 3}


def test_second_job_of_a_batch_is_a_duplicate_of_the_first(api: Api) -> None:
    answer = api.batch(with_key(payload=1), with_key(payload=2), with_key(payload=3))
    assert statuses(answer) == ["created", "duplicate", "duplicate"]
    assert len(set(ids(answer))) == 1
    assert api.job(ids(answer)[0])["payload"] == 1
    assert api.counts() == {"ready": 1}


def test_second_job_of_a_batch_is_rejected_as_duplicate(api: Api, db: TestDatabase) -> None:
    problem = api.batch(with_key(), with_key(on_duplicate="reject"), status=409)
    assert [error["pointer"] for error in problem["errors"]] == ["/jobs/1/unique/key"]
    assert count_jobs(db) == 0
    answer = api.batch(with_key(), with_key(on_duplicate="reject"), atomic=False, status=207)
    assert statuses(answer) == ["created", "rejected"]
    assert answer["results"][1]["problem"]["existing_job_id"] == ids(api.batch(with_key()))[0]


def test_second_job_of_a_batch_replaces_the_first(api: Api) -> None:
    jobs = [
        with_key(payload=1, group="g", priority=1),
        with_key(payload=2, tags=["t"], on_duplicate="replace", group="h"),
    ]
    answer = api.batch(*jobs)
    assert statuses(answer) == ["created", "duplicate"]
    job = api.job(ids(answer)[0])
    assert (job["payload"], job["group"], job["priority"], job["tags"]) == (2, "g", 0, ["t"])
    assert api.counts() == {"ready": 1}


@pytest.mark.parametrize(
    ("first", "second", "state"), [(0, 60, "scheduled"), (60, 0, "ready")], ids=["postponed", "advanced"]
)
def test_second_job_of_a_batch_sets_run_at_of_the_first(api: Api, first: int, second: int, state: str) -> None:
    api.batch(with_key(delay_seconds=first), with_key(delay_seconds=second, on_duplicate="replace"))
    assert api.counts() == {state: 1}


@pytest.mark.parametrize("rules", [{"max_running_per_group": 1}, {"fair": True}], ids=["limited", "fair"])
@pytest.mark.parametrize(
    ("first", "second"), [({"group": "g"}, {}), ({}, {"group": "g"})], ids=["group first", "group second"]
)
def test_job_replaced_within_its_batch_is_admitted(api: Api, rules: Json, first: Json, second: Json) -> None:
    api.configure(**rules)
    answer = api.batch(with_key(**first), with_key(payload=2, on_duplicate="replace", **second))
    claimed = api.claim_one(wait_seconds=20)
    assert (claimed["id"], claimed["payload"], claimed.get("group")) == (ids(answer)[0], 2, first.get("group"))


def test_batch_replaces_an_existing_job(api: Api) -> None:
    first = api.enqueue(**with_key(payload=1, delay_seconds=60))
    answer = api.batch(
        with_key(payload=2, delay_seconds=60, on_duplicate="replace"), {}, with_key(payload=3, on_duplicate="replace")
    )
    assert statuses(answer) == ["duplicate", "created", "duplicate"]
    job = api.job(first["id"])
    assert (job["payload"], job["state"]) == (3, "ready")
    assert api.counts() == {"ready": 2}


def test_same_unique_key_in_several_queues_of_a_batch_is_no_duplicate(api: Api) -> None:
    answer = api.batch(*[with_key(queue=f"{api.queue}-{n % 2}") for n in range(4)])
    assert statuses(answer) == ["created", "created", "duplicate", "duplicate"]
    assert ids(answer)[:2] == ids(answer)[2:]


def test_duplicate_of_a_job_rejected_by_a_full_queue_is_rejected(api: Api, db: TestDatabase) -> None:
    api.configure(max_waiting=1)
    api.enqueue()
    answer = api.batch(with_key(), with_key(), atomic=False, status=207)
    assert statuses(answer) == ["rejected", "rejected"]
    assert {result["problem"]["code"] for result in answer["results"]} == {"queue_full"}
    assert count_jobs(db) == 1


def test_duplicate_of_a_job_with_an_unknown_parent_is_rejected(api: Api, db: TestDatabase) -> None:
    unknown_id = "01890000-0000-7000-8000-000000000000"
    answer = api.batch(with_key(depends_on=[unknown_id]), with_key(), atomic=False, status=207)
    assert statuses(answer) == ["rejected", "rejected"]
    assert count_jobs(db) == 0
    assert statuses(api.batch(with_key())) == ["created"]


def test_child_of_a_duplicate_depends_on_the_existing_job(api: Api) -> None:
    first = api.enqueue(job_type="parent", **with_key())
    child = ids(api.batch({"ref": "p", **with_key()}, {"job_type": "child", "depends_on": ["p"]}))[1]
    assert (api.job(child)["state"], api.job(child)["depends_on"]) == ("blocked", [first["id"]])
    api.complete(api.claim_one())
    assert api.claim_one(wait_seconds=20)["id"] == child


def test_child_of_a_duplicate_within_the_batch_depends_on_the_first_job(api: Api) -> None:
    answer = api.batch(
        {"ref": "a", **with_key()}, {"ref": "b", **with_key()}, {"depends_on": ["b"]}, {"depends_on": ["b", "b"]}
    )
    parent, _, *children = ids(answer)
    assert [api.job(child)["depends_on"] for child in children] == [[parent], [parent]]
    api.complete(api.claim_one())
    wait_until(lambda: api.counts() == {"completed": 1, "ready": 2})


@pytest.mark.parametrize("atomic", [True, False])
def test_duplicates_of_a_batch_may_not_close_a_cycle(api: Api, db: TestDatabase, atomic: bool) -> None:
    jobs = [
        {"ref": "a", "depends_on": ["c"], **with_key()},
        {"ref": "b", **with_key()},
        {"ref": "c", "depends_on": ["b"]},
    ]
    problem = api.batch(*jobs, atomic=atomic, status=422)
    assert [error["code"] for error in problem["errors"]] == ["cycle"]
    assert count_jobs(db) == 0
