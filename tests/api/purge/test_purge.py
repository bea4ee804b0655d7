"""POST /queues/{name}/purge removes waiting jobs and no others."""

import pytest

from tests.api_client import Api, Json
from tests.polls import Background
from tests.table import table


def purge(api: Api, *states: str, dry_run: bool = False) -> tuple[int, int]:
    answer = api.post(f"/queues/{api.queue}/purge", {"dry_run": dry_run, **({"states": states} if states else {})})
    assert answer.keys() == {"matched", "purged"} | ({"dry_run"} if dry_run else set())
    return answer["matched"], answer["purged"]


def is_gone(api: Api, job: Json) -> bool:
    return api.http.get(f"/jobs/{job['id']}").status_code == 404


def test_purge_is_a_dry_run_by_default(api: Api) -> None:
    jobs = [api.enqueue(), api.enqueue(delay_seconds=60)]
    path = f"/queues/{api.queue}/purge"
    for answer in (api.post(path), api.post(path, {}), api.post(path, {"dry_run": True})):
        assert answer == {"matched": 2, "purged": 0, "dry_run": True}
    assert not any(is_gone(api, job) for job in jobs)
    assert api.counts() == {"ready": 1, "scheduled": 1}


def test_purged_job_leaves_no_record(api: Api) -> None:
    jobs = [api.enqueue(), api.enqueue(delay_seconds=60)]
    assert purge(api) == (2, 2)
    assert all(is_gone(api, job) for job in jobs)
    assert api.counts() == {}
    assert api.get("/jobs", queue=api.queue)["items"] == []
    assert api.claim()["jobs"] == []
    assert purge(api) == (0, 0)


@pytest.mark.parametrize(
    ("states", "left"),
    [
        (["ready"], {"scheduled": 1, "blocked": 1}),
        (["scheduled"], {"ready": 2, "blocked": 1}),
        (["blocked"], {"ready": 2, "scheduled": 1}),
        (["blocked", "ready", "blocked"], {"scheduled": 1}),
    ],
    ids=str,
)
def test_purge_removes_only_jobs_in_the_given_states(api: Api, states: list[str], left: dict[str, int]) -> None:
    """A pending job (waiting for admission in its group) counts as ready."""
    api.configure(max_running_per_group=1)
    api.enqueue(delay_seconds=60)
    api.enqueue_many(2, group="a")
    api.enqueue(depends_on=[api.enqueue(queue=f"{api.queue}-a")["id"]])
    counts = api.counts()
    assert counts == {"ready": 2, "scheduled": 1, "blocked": 1}
    gone = sum(counts[state] - left.get(state, 0) for state in counts)
    assert purge(api, *states, dry_run=True) == (gone, 0)
    assert purge(api, *states) == (gone, gone)
    assert api.counts() == left


def test_purged_parent_counts_as_failed_for_its_children(api: Api) -> None:
    parent = api.enqueue(delay_seconds=60)
    child, independent_child = (
        api.enqueue(depends_on=[parent["id"]]),
        api.enqueue(depends_on=[parent["id"]], on_parent_failure="run"),
    )
    assert purge(api, "scheduled") == (1, 1)
    assert api.job(child["id"], wait_seconds=20)["state_reason"] == "dependency_failed"
    assert api.claim_one(wait_seconds=20)["id"] == independent_child["id"]


def test_next_job_of_a_group_is_admitted_when_an_admitted_one_is_purged(api: Api) -> None:
    api.configure(max_running_per_group=1)
    first, second = api.enqueue_many(2, group="a")
    api.fail(api.claim_one(wait_seconds=20), retry_after_seconds=600)  # keeps its admission
    assert api.job(first)["state"] == "scheduled"
    assert api.claim()["jobs"] == []
    assert purge(api, "scheduled") == (1, 1)
    assert api.claim_one(wait_seconds=20)["id"] == second


def test_purge_keeps_running_and_finished_jobs(api: Api) -> None:
    dead = api.dead_letter()
    done = api.enqueue()
    api.complete(api.claim_one())
    api.enqueue()
    running = api.claim_one()
    waiting = api.enqueue()
    assert purge(api) == (1, 1)
    assert is_gone(api, waiting)
    assert [api.job(job["id"])["state"] for job in (dead, done, running)] == ["dead", "completed", "running"]
    assert api.complete(running)["state"] == "completed"
    assert api.counts() == {"dead": 1, "completed": 2}


def test_purge_covers_all_lanes_of_the_queue_and_no_other_queue(api: Api) -> None:
    api.configure(lanes=8)
    jobs_of_other_queues = [api.enqueue(queue=f"{api.queue}-{name}") for name in "ab"]
    api.enqueue_many(40)
    assert purge(api) == (40, 40)
    assert not any(is_gone(api, job) for job in jobs_of_other_queues)


def test_job_is_claimed_or_purged_but_never_both(api: Api, background: Background) -> None:
    api.configure(lanes=2)
    api.enqueue_many(60)
    claims = [lambda: api.claim(max_jobs=5)["jobs"]] * 6
    *claimed, purged = background.together(*claims, lambda: [{"purged": purge(api)[1]}])
    jobs = [job for claim in claimed for job in claim]
    assert len(jobs) + purged[0]["purged"] == 60
    assert {api.complete(job)["status"] for job in jobs} <= {"settled"}
    assert api.counts() == ({"completed": len(jobs)} if jobs else {})


def test_concurrent_purges_count_each_job_once(api: Api, background: Background) -> None:
    api.enqueue_many(100)
    purges = background.together(*[lambda: purge(api)] * 4)
    assert sum(purged for _, purged in purges) == 100
    assert api.counts() == {}


def test_purged_queue_can_be_deleted(api: Api) -> None:
    api.enqueue_many(3)
    api.delete(f"/queues/{api.queue}", status=409)
    purge(api)
    api.delete(f"/queues/{api.queue}")
    assert api.post(f"/queues/{api.queue}/purge", status=404)["code"] == "not_found"


def test_purge_of_an_unknown_queue_is_not_found(api: Api) -> None:
    assert api.post(f"/queues/{api.queue}/purge", {"dry_run": False}, status=404)["code"] == "not_found"


@table(
    ("body", "pointer"),
    [
        ({"states": []}, "/states"),
        ({"states": ["running"]}, "/states/0"),
        ({"states": ["ready", "pending"]}, "/states/1"),
        ({"states": "ready"}, "/states"),
        ({"dry_run": "no"}, "/dry_run"),
        ({"dry-run": False}, "/dry-run"),
        ({"job_type": "test"}, "/job_type"),
    ],
)
def test_invalid_purge_is_rejected_and_removes_nothing(api: Api, body: Json, pointer: str) -> None:
    job = api.enqueue()
    problem = api.post(f"/queues/{api.queue}/purge", {"dry_run": False, **body}, status=422)
    assert [fault["pointer"] for fault in problem["errors"]] == [pointer]
    assert not is_gone(api, job)
