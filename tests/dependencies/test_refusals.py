"""What is no dependency: unknown names, circles, and parents that were refused themselves."""

from itertools import pairwise

import pytest

from tests.api import Api, Json
from tests.database import TestDatabase
from tests.dependencies.family import NOBODY
from tests.unique.keys import count_jobs, has


def faults(problem: Json) -> list[tuple[str, str]]:
    return [(error["pointer"], error["code"]) for error in problem["errors"]]


def statuses(answer: Json) -> list[str]:
    return [result["status"] for result in answer["results"]]


def test_a_name_that_is_neither_an_id_nor_a_ref_is_refused(api: Api, db: TestDatabase) -> None:
    parent = api.enqueue()
    assert faults(api.enqueue(status=422, depends_on=[parent["id"], "a"])) == [("/depends_on/1", "unknown_ref")]
    assert faults(api.batch({"ref": "a"}, {"depends_on": ["a", "b"]}, status=422)) == [
        ("/jobs/1/depends_on/1", "unknown_ref")
    ]
    assert count_jobs(db) == 1


def test_an_id_that_is_nobodys_is_refused(api: Api, db: TestDatabase) -> None:
    parent = api.enqueue()
    assert faults(api.enqueue(status=422, depends_on=[parent["id"], NOBODY])) == [("/depends_on", "unknown_job")]
    problem = api.batch({}, {"depends_on": [NOBODY]}, {"depends_on": [parent["id"]]}, status=422)
    assert faults(problem) == [("/jobs/1/depends_on", "unknown_job")]
    assert NOBODY in problem["errors"][0]["detail"]
    assert count_jobs(db) == 1


def test_a_parent_that_was_purged_or_is_no_longer_kept_is_nobody(api: Api, db: TestDatabase) -> None:
    purged, old = api.enqueue(), api.dead(queue=f"{api.queue}-other")
    api.post(f"/queues/{api.queue}/purge", {"dry_run": False})
    api.post("/dead-letters/purge", {"ids": [old["id"]], "dry_run": False})
    for parent in (purged, old):
        assert faults(api.enqueue(status=422, depends_on=[parent["id"]])) == [("/depends_on", "unknown_job")]
    finished = api.enqueue()
    api.complete(api.claim_one())
    db.execute("UPDATE finished_jobs SET keep_until = now() - interval '1 minute'")
    assert faults(api.enqueue(status=422, depends_on=[finished["id"]])) == [("/depends_on", "unknown_job")]


@pytest.mark.parametrize(
    ("parents", "told"),
    [
        ({"a": ["a"]}, "a -> a"),
        ({"a": ["b"], "b": ["a"]}, "a -> b -> a"),
        ({"x": [], "a": ["x", "b"], "b": ["x", "c"], "c": ["a"]}, "a -> b -> c -> a"),
        ({"start": ["a"], "a": ["b"], "b": ["a"]}, "a -> b -> a"),
    ],
    ids=["self", "two", "three", "behind a tail"],
)
def test_a_circle_is_told_all_the_way_round(
    api: Api, db: TestDatabase, parents: dict[str, list[str]], told: str
) -> None:
    jobs = [{"ref": name, "depends_on": awaited} for name, awaited in parents.items()]
    problem = api.batch(*jobs, status=422)
    assert faults(problem) == [(f"/jobs/{list(parents).index('a')}/depends_on", "cycle")]
    assert problem["errors"][0]["detail"] == told
    assert count_jobs(db) == 0


def test_a_circle_is_the_fault_of_those_in_it_if_not_all_have_to_fit(api: Api) -> None:
    good, circle = {"ref": "good"}, [{"ref": "a", "depends_on": ["b"]}, {"ref": "b", "depends_on": ["a"]}]
    answer = api.batch(good, *circle, {"depends_on": ["good"]}, atomic=False, status=207)
    assert [result["status"] for result in answer["results"]] == ["created", "rejected", "rejected", "created"]
    assert answer["results"][1]["problem"]["errors"][0]["code"] == "cycle"


def test_a_circle_of_a_thousand_is_found(api: Api, db: TestDatabase) -> None:
    jobs = [{"ref": f"r{n}", "depends_on": [f"r{(n + 1) % 1000}"]} for n in range(1000)]
    problem = api.batch(*jobs, status=422)
    assert problem["errors"][0]["detail"].endswith("-> ... (1000 jobs) -> r0")
    assert count_jobs(db) == 0


def test_the_response_to_a_thousand_cycles_is_not_much_larger_than_the_request(api: Api) -> None:
    """Each job depends on the next, and the last on all others: each is the first of a cycle."""
    refs = [f"{n:04}{'x' * 110}" for n in range(1000)]
    jobs: list[Json] = [
        {"queue": api.queue, "job_type": "test", "ref": ref, "depends_on": [after]} for ref, after in pairwise(refs)
    ]
    jobs.append({"queue": api.queue, "job_type": "test", "ref": refs[-1], "depends_on": refs[:-1]})
    answer = api.http.post("/jobs/batch", json={"jobs": jobs, "atomic": False})
    assert set(statuses(answer.json())) == {"rejected"}
    assert len(answer.content) < 20 * len(answer.request.content)


def test_a_ref_that_is_given_twice_is_refused(api: Api, db: TestDatabase) -> None:
    assert faults(api.batch({"ref": "a"}, {"ref": "a"}, status=422)) == [("/jobs/1/ref", "duplicate_ref")]
    assert count_jobs(db) == 0


def test_a_ref_is_for_batches(api: Api) -> None:
    assert faults(api.enqueue(status=422, ref="a"))[0][0] == "/ref"


def test_a_ref_of_another_batch_is_unknown(api: Api) -> None:
    api.batch({"ref": "a"})
    assert faults(api.batch({"depends_on": ["a"]}, status=422)) == [("/jobs/0/depends_on/0", "unknown_ref")]


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"depends_on": "a"}, "/depends_on"),
        ({"depends_on": [7]}, "/depends_on/0"),
        ({"depends_on": [""]}, "/depends_on/0"),
        ({"depends_on": ["a\x00"]}, "/depends_on/0"),
        ({"depends_on": None}, "/depends_on"),
        ({"depends_on": [NOBODY] * 1001}, "/depends_on"),
        ({"on_parent_failure": "run"}, "/on_parent_failure"),
        ({"depends_on": [NOBODY], "on_parent_failure": "ignore"}, "/on_parent_failure"),
    ],
    ids=["text", "number", "empty", "NUL", "null", "too many", "without parents", "unknown policy"],
)
def test_what_is_no_dependency_is_refused(api: Api, fields: Json, pointer: str) -> None:
    assert [error["pointer"] for error in api.enqueue(status=422, **fields)["errors"]] == [pointer]


def test_without_atomic_the_descendants_of_a_bad_job_are_refused_and_the_others_stored(
    api: Api, db: TestDatabase
) -> None:
    jobs: list[Json] = [
        {"ref": "bad", "job_type": "a b"},
        *[{"ref": f"r{n}", "depends_on": [f"r{n - 1}" if n else "bad"]} for n in range(4)],
    ]
    answer = api.batch(
        *jobs, {"ref": "good"}, {"depends_on": ["good"]}, {"depends_on": ["good", "r3"]}, atomic=False, status=207
    )
    assert statuses(answer) == ["rejected"] * 5 + ["created", "created", "rejected"]
    assert (answer["created"], answer["rejected"]) == (2, 6)
    assert api.counts() == {"ready": 1, "blocked": 1}


def test_without_atomic_the_descendants_of_an_orphan_are_refused(api: Api, db: TestDatabase) -> None:
    jobs = [
        {"ref": "r2", "depends_on": ["r1"]},
        {"ref": "r1", "depends_on": ["r0"]},
        {"ref": "r0", "depends_on": [NOBODY]},
    ]
    answer = api.batch(*jobs, atomic=False, status=207)
    assert statuses(answer) == ["rejected"] * 3
    codes = [result["problem"]["errors"][0]["code"] for result in answer["results"]]
    assert codes == ["refused_parent", "refused_parent", "unknown_job"]
    assert count_jobs(db) == 0


def test_without_atomic_the_children_of_a_rejected_duplicate_are_refused(api: Api) -> None:
    api.enqueue(**has())
    jobs: list[Json] = [
        {"ref": "p", **has(on_duplicate="reject")},
        {"ref": "c", "depends_on": ["p"]},
        {"depends_on": ["c"]},
        {},
    ]
    answer = api.batch(*jobs, atomic=False, status=207)
    assert statuses(answer) == ["rejected", "rejected", "rejected", "created"]
    assert answer["results"][1]["problem"]["errors"] == [
        {"pointer": "/jobs/1/depends_on", "code": "refused_parent", "detail": "a job that it depends on was refused"}
    ]
    assert api.counts() == {"ready": 2}


def test_without_atomic_the_children_of_one_that_finds_no_room_are_refused(api: Api) -> None:
    api.configure(max_waiting=1)
    other = f"{api.queue}-other"
    answer = api.batch({"ref": "in"}, {"ref": "out"}, {"queue": other, "depends_on": ["out"]}, atomic=False, status=207)
    assert statuses(answer) == ["created", "rejected", "rejected"]


def test_a_batch_with_a_family_that_finds_no_room_is_told_to_come_again(api: Api, db: TestDatabase) -> None:
    api.configure(max_waiting=2)
    jobs: list[Json] = [
        {"ref": "a"},
        {"ref": "b", "depends_on": ["a"]},
        {"ref": "c", "depends_on": ["b"]},
        {"depends_on": ["c"]},
    ]
    assert api.batch(*jobs, status=429)["code"] == "queue_full"
    assert count_jobs(db) == 0
