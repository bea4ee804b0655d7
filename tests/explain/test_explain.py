"""Why a job is not running: each reason is brought about here, and told with its facts."""

from typing import Any

import pytest

from tests.api import Api, Json, when
from tests.conftest import wait_until
from tests.database import TestDatabase


def explain(api: Api, job: Json) -> Json:
    told: Json = api.get(f"/jobs/{job['id']}/explain")
    return told


def reason(api: Api, job: Json, code: str) -> Json:
    """The reason of this code, which comes about after a moment where somebody has to decide first."""

    def found() -> Any:
        return next((one for one in explain(api, job)["reasons"] if one["code"] == code), None)

    one: Json = wait_until(found)
    return one


def codes(api: Api, job: Json) -> list[str]:
    return [one["code"] for one in explain(api, job)["reasons"]]


@pytest.fixture
def params(api: Api) -> Api:
    """A queue that a worker has asked for: nobody needs to be told that none has."""
    api.configure()
    api.claim()
    return api


def test_a_job_that_nothing_holds_back_is_claimable(params: Api) -> None:
    job = params.enqueue()
    assert explain(params, job) == {
        "state": "ready",
        "reasons": [{"code": "claimable", "detail": "the next worker that asks gets it"}],
    }


def test_a_job_that_is_not_due_tells_when_it_is(params: Api) -> None:
    job = params.enqueue(delay_seconds=60)
    told = explain(params, job)
    assert (told["state"], codes(params, job)) == ("scheduled", ["not_due"])
    assert told["reasons"][0]["until"] == job["run_at"]


def test_a_retry_tells_that_it_is_one(params: Api) -> None:
    job = params.enqueue()
    params.fail(params.claim_one(), retry_after_seconds=60)
    assert reason(params, job, "not_due")["reason"] == "retry_backoff"


def test_a_blocked_job_tells_whom_it_waits_for(params: Api) -> None:
    parents = [params.enqueue()["id"] for _ in range(2)]
    child = params.enqueue(depends_on=parents)
    assert reason(params, child, "waiting_for_jobs")["job_ids"] == parents
    params.complete(params.claim_one())
    wait_until(lambda: reason(params, child, "waiting_for_jobs")["job_ids"] == parents[1:])


def test_a_paused_queue_tells_why_and_since_when(params: Api) -> None:
    job = params.enqueue()
    paused = params.post(f"/queues/{params.queue}/pause", {"reason": "we move"})
    told = reason(params, job, "queue_paused")
    assert (told["reason"], told["since"]) == ("we move", paused["paused_at"])
    params.post(f"/queues/{params.queue}/resume")
    assert "queue_paused" not in codes(params, job)


def test_a_group_at_its_limit_tells_who_holds_it_and_who_comes_before(params: Api) -> None:
    params.configure(max_running_per_group=1)
    jobs = [params.enqueue(group="g") for _ in range(3)]
    params.claim_one(wait_seconds=20)
    told = reason(params, jobs[2], "group_at_limit")
    assert (told["job_ids"], told["ahead"], told["limit"], told["group"]) == ([jobs[0]["id"]], 1, 1, "g")


def test_a_group_at_rest_tells_until_when(params: Api) -> None:
    jobs = [params.enqueue(group="g") for _ in range(2)]
    settled = params.fail(params.claim_one(), retry_after_seconds=60, scope="group")
    told = reason(params, jobs[1], "group_at_rest")
    assert when(told["until"]) >= when(settled["run_at"])
    assert told["group"] == "g"


def test_a_queue_at_its_limit_tells_how_many_run(params: Api) -> None:
    params.configure(max_running=2)
    jobs = params.enqueue_many(3)
    params.claim(max_jobs=2)
    told = reason(params, {"id": jobs[2]}, "queue_at_limit")
    assert (told["running"], told["limit"]) == (2, 2)


def test_a_rate_tells_when_it_lets_the_next_one_through(params: Api) -> None:
    params.configure(rate={"limit": 1, "per_seconds": 600})
    jobs = params.enqueue_many(2)
    held = params.claim_one()
    told = reason(params, {"id": jobs[1]}, "rate_limited")
    began = when(params.job(held["id"])["started_at"])
    assert 600 <= (when(told["until"]) - began).total_seconds() < 601


def test_jobs_that_go_first_are_counted(params: Api) -> None:
    params.enqueue_many(2)
    job = params.enqueue()
    params.enqueue(priority=5)
    params.enqueue()
    assert reason(params, job, "jobs_ahead")["ahead"] == 3


def test_in_a_fair_queue_those_that_have_their_turn_before_are_counted(params: Api) -> None:
    params.configure(fair=True)
    [params.enqueue(group="a") for _ in range(3)]
    job = params.enqueue(group="b")
    assert reason(params, job, "jobs_ahead")["ahead"] == 1
    assert codes(params, job) == ["jobs_ahead"]


def test_a_job_that_waits_for_its_turn_says_so(params: Api, db: TestDatabase) -> None:
    """It is for a moment only, before it is decided whose turn it is: held here by moving a row."""
    params.configure(fair=True)
    job = params.enqueue(group="a")
    wait_until(lambda: codes(params, job) == ["claimable"])
    db.execute("UPDATE jobs SET state = 'parked', turn = NULL, group_key = 'b' WHERE id = $1", job["id"])
    assert codes(params, job)[0] in ("waits_for_turn", "claimable")
    wait_until(lambda: codes(params, job) == ["claimable"])


def test_a_queue_that_nobody_asks_for_says_so(api: Api) -> None:
    job = api.enqueue()
    assert "since" not in reason(api, job, "no_worker")
    api.claim(job_types=["other"])
    assert "no_worker" in codes(api, job)
    api.claim(job_types=["test"], max_jobs=1, settle=[])
    assert "no_worker" not in codes(api, job)


def test_a_worker_that_asked_long_ago_does_not_count(params: Api, db: TestDatabase) -> None:
    job = params.enqueue()
    assert codes(params, job) == ["claimable"]
    db.execute("UPDATE asks SET last_at = last_at - interval '6 minutes'")
    assert "since" in reason(params, job, "no_worker")


def test_several_reasons_are_told_together(api: Api) -> None:
    api.configure()
    api.pause()
    job = api.enqueue(delay_seconds=60)
    assert codes(api, job) == ["not_due", "queue_paused", "no_worker"]


def test_a_running_job_tells_who_runs_it(params: Api) -> None:
    job = params.enqueue()
    params.claim_one(worker_id="w-7")
    told = explain(params, job)
    assert (told["state"], told["reasons"][0]["code"], told["reasons"][0]["worker_id"]) == ("running", "running", "w-7")


@pytest.mark.parametrize("end", ["completed", "dead", "cancelled"])
def test_a_job_that_has_ended_tells_how(params: Api, end: str) -> None:
    job = params.enqueue()
    if end == "cancelled":
        params.cancel(job)
    elif end == "dead":
        params.fail(params.claim_one(), retryable=False)
    else:
        params.complete(params.claim_one())
    told = explain(params, job)
    assert (told["state"], [one["code"] for one in told["reasons"]]) == (end, [end])


def test_a_job_that_does_not_exist_cannot_be_explained(api: Api) -> None:
    api.get("/jobs/01a1e24b-7875-7000-8000-4007af56e171/explain", status=404)


def test_dead_job_explains_what_its_reason_means(params: Api, db: TestDatabase) -> None:
    crashed = params.enqueue(max_attempts=5)
    for _ in range(3):
        db.age(params.claim_one()["id"], 61)
        wait_until(lambda: params.job(crashed["id"])["state"] != "running")
    failed = params.enqueue(max_attempts=1)
    params.fail(params.claim_one())
    details = [reason(params, job, "dead")["detail"] for job in (crashed, failed)]
    assert details == [
        "it is dead: poison, its lease ran out 3 times",
        "it is dead: attempts_exhausted, it has used all of its attempts, 1",
    ]
