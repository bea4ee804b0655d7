"""Rejected dependencies: unknown parents, cycles, and parents that were rejected themselves."""

from itertools import pairwise

from tests.api.dependencies.job_graph import UNKNOWN_ID
from tests.api.unique_keys.keys import count_jobs, with_key
from tests.api_client import Api, Json
from tests.database import TestDatabase
from tests.table import table


def faults(problem: Json) -> list[tuple[str, str]]:
    return [(error["pointer"], error["code"]) for error in problem["errors"]]


def statuses(answer: Json) -> list[str]:
    return [result["status"] for result in answer["results"]]


def test_parent_that_is_neither_an_id_nor_a_ref_is_rejected(api: Api, db: TestDatabase) -> None:
    parent = api.enqueue()
    assert faults(api.enqueue(status=422, depends_on=[parent["id"], "a"])) == [("/depends_on/1", "unknown_ref")]
    assert faults(api.batch({"ref": "a"}, {"depends_on": ["a", "b"]}, status=422)) == [
        ("/jobs/1/depends_on/1", "unknown_ref")
    ]
    assert count_jobs(db) == 1


def test_unknown_parent_id_is_rejected(api: Api, db: TestDatabase) -> None:
    parent = api.enqueue()
    assert faults(api.enqueue(status=422, depends_on=[parent["id"], UNKNOWN_ID])) == [("/depends_on", "unknown_job")]
    problem = api.batch({}, {"depends_on": [UNKNOWN_ID]}, {"depends_on": [parent["id"]]}, status=422)
    assert faults(problem) == [("/jobs/1/depends_on", "unknown_job")]
    assert UNKNOWN_ID in problem["errors"][0]["detail"]
    assert count_jobs(db) == 1


def test_purged_parent_or_parent_past_its_retention_is_unknown(api: Api, db: TestDatabase) -> None:
    purged, old = api.enqueue(), api.dead_letter(queue=f"{api.queue}-other")
    api.post(f"/queues/{api.queue}/purge", {"dry_run": False})
    api.post("/dead-letters/purge", {"ids": [old["id"]], "dry_run": False})
    for parent in (purged, old):
        assert faults(api.enqueue(status=422, depends_on=[parent["id"]])) == [("/depends_on", "unknown_job")]
    finished = api.enqueue()
    api.complete(api.claim_one())
    db.execute("UPDATE finished_jobs SET keep_until = now() - interval '1 minute'")
    assert faults(api.enqueue(status=422, depends_on=[finished["id"]])) == [("/depends_on", "unknown_job")]


@table(
    ("parents", "path"),
    [
        ({"a": ["a"]}, "a -> a"),
        ({"a": ["b"], "b": ["a"]}, "a -> b -> a"),
        ({"x": [], "a": ["x", "b"], "b": ["x", "c"], "c": ["a"]}, "a -> b -> c -> a"),
        ({"start": ["a"], "a": ["b"], "b": ["a"]}, "a -> b -> a"),
    ],
)
def test_cycle_is_reported_with_its_path(api: Api, db: TestDatabase, parents: dict[str, list[str]], path: str) -> None:
    jobs = [{"ref": name, "depends_on": parents_of_job} for name, parents_of_job in parents.items()]
    problem = api.batch(*jobs, status=422)
    assert faults(problem) == [(f"/jobs/{list(parents).index('a')}/depends_on", "cycle")]
    assert problem["errors"][0]["detail"] == path
    assert count_jobs(db) == 0


def test_non_atomic_batch_rejects_only_the_jobs_of_a_cycle(api: Api) -> None:
    valid, cycle = {"ref": "good"}, [{"ref": "a", "depends_on": ["b"]}, {"ref": "b", "depends_on": ["a"]}]
    answer = api.batch(valid, *cycle, {"depends_on": ["good"]}, atomic=False, status=207)
    assert [result["status"] for result in answer["results"]] == ["created", "rejected", "rejected", "created"]
    assert answer["results"][1]["problem"]["errors"][0]["code"] == "cycle"


def test_cycle_of_a_thousand_jobs_is_found(api: Api, db: TestDatabase) -> None:
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


def test_duplicate_ref_is_rejected(api: Api, db: TestDatabase) -> None:
    assert faults(api.batch({"ref": "a"}, {"ref": "a"}, status=422)) == [("/jobs/1/ref", "duplicate_ref")]
    assert count_jobs(db) == 0


def test_single_enqueue_rejects_a_ref(api: Api) -> None:
    assert faults(api.enqueue(status=422, ref="a"))[0][0] == "/ref"


def test_ref_of_another_batch_is_unknown(api: Api) -> None:
    api.batch({"ref": "a"})
    assert faults(api.batch({"depends_on": ["a"]}, status=422)) == [("/jobs/0/depends_on/0", "unknown_ref")]


@table(
    ("fields", "pointer"),
    [
        ({"depends_on": "a"}, "/depends_on"),
        ({"depends_on": [7]}, "/depends_on/0"),
        ({"depends_on": [""]}, "/depends_on/0"),
        ({"depends_on": ["a\x00"]}, "/depends_on/0"),
        ({"depends_on": None}, "/depends_on"),
        ({"depends_on": [UNKNOWN_ID] * 1001}, "/depends_on"),
        ({"on_parent_failure": "run"}, "/on_parent_failure"),
        ({"depends_on": [UNKNOWN_ID], "on_parent_failure": "ignore"}, "/on_parent_failure"),
    ],
)
def test_invalid_dependency_is_rejected(api: Api, fields: Json, pointer: str) -> None:
    assert [error["pointer"] for error in api.enqueue(status=422, **fields)["errors"]] == [pointer]


def test_non_atomic_batch_rejects_the_descendants_of_an_invalid_job(api: Api, db: TestDatabase) -> None:
    jobs: list[Json] = [
        {"ref": "invalid", "job_type": "a b"},
        *[{"ref": f"r{n}", "depends_on": [f"r{n - 1}" if n else "invalid"]} for n in range(4)],
    ]
    answer = api.batch(
        *jobs, {"ref": "good"}, {"depends_on": ["good"]}, {"depends_on": ["good", "r3"]}, atomic=False, status=207
    )
    assert statuses(answer) == ["rejected"] * 5 + ["created", "created", "rejected"]
    assert (answer["created"], answer["rejected"]) == (2, 6)
    assert api.counts() == {"ready": 1, "blocked": 1}


def test_non_atomic_batch_rejects_the_descendants_of_a_job_with_an_unknown_parent(api: Api, db: TestDatabase) -> None:
    jobs = [
        {"ref": "r2", "depends_on": ["r1"]},
        {"ref": "r1", "depends_on": ["r0"]},
        {"ref": "r0", "depends_on": [UNKNOWN_ID]},
    ]
    answer = api.batch(*jobs, atomic=False, status=207)
    assert statuses(answer) == ["rejected"] * 3
    codes = [result["problem"]["errors"][0]["code"] for result in answer["results"]]
    assert codes == ["refused_parent", "refused_parent", "unknown_job"]
    assert count_jobs(db) == 0


def test_non_atomic_batch_rejects_the_children_of_a_rejected_duplicate(api: Api) -> None:
    api.enqueue(**with_key())
    jobs: list[Json] = [
        {"ref": "p", **with_key(on_duplicate="reject")},
        {"ref": "c", "depends_on": ["p"]},
        {"depends_on": ["c"]},
        {},
    ]
    answer = api.batch(*jobs, atomic=False, status=207)
    assert statuses(answer) == ["rejected", "rejected", "rejected", "created"]
    assert answer["results"][1]["problem"]["errors"] == [
        {"pointer": "/jobs/1/depends_on", "code": "refused_parent", "detail": "a parent of this job was rejected"}
    ]
    assert api.counts() == {"ready": 2}


def test_non_atomic_batch_rejects_the_children_of_a_job_for_a_full_queue(api: Api) -> None:
    api.configure(max_waiting=1)
    other = f"{api.queue}-other"
    answer = api.batch({"ref": "in"}, {"ref": "out"}, {"queue": other, "depends_on": ["out"]}, atomic=False, status=207)
    assert statuses(answer) == ["created", "rejected", "rejected"]


def test_graph_that_exceeds_max_waiting_is_rejected_as_queue_full(api: Api, db: TestDatabase) -> None:
    api.configure(max_waiting=2)
    jobs: list[Json] = [
        {"ref": "a"},
        {"ref": "b", "depends_on": ["a"]},
        {"ref": "c", "depends_on": ["b"]},
        {"depends_on": ["c"]},
    ]
    assert api.batch(*jobs, status=429)["code"] == "queue_full"
    assert count_jobs(db) == 0
